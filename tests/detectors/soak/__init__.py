"""Long runs of the rules on real engines."""
