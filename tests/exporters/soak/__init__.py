"""Minutes-long runs of the exporter, under the soak marker."""
