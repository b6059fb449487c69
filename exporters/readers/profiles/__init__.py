"""Profiles of any format in one columnar table, and what they say about who waited for whom."""
