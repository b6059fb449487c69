"""The `stallscope` command: one front for every room, each command loaded only when it is run."""
