"""Dashboards, recording rules and alerts as code, generated from the catalog and the thresholds."""
