"""Tests of the room `patched_engine`."""
