"""Tests of the room `dashboards`."""
