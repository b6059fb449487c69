"""Pure functions from a Snapshot to Findings: one rule for live use, history and alerts."""
