"""Tests of the RESP client."""
