"""Readers: each turns one source (a folder of pages, a shard) into the Snapshot's types."""
