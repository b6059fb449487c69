"""Tests of the project itself: its wheel, its imports, its arrows and its pinned versions."""
