"""Minutes-long runs of the RESP client: fuzzing and a million calls."""
