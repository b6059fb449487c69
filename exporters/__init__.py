"""The sidecar: turns what the engine and the shards show into Snapshots and metrics."""
