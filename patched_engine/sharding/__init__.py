"""The sharded store: each rank stores, looks up and loads its own chunks (post, Bottleneck 1)."""
