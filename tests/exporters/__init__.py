"""Tests of the room `exporters`."""
