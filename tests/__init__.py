"""Tests, one folder per room."""
