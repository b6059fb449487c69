"""The lab's long runs, under `make soak` only; their result files are committed."""
