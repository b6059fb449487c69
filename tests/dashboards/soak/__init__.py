"""Minutes-long runs of the rules and boards on a real Prometheus, under the soak marker."""
