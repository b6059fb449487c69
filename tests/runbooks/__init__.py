"""Tests of the room `runbooks`."""
