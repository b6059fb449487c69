"""Yesterday's traffic, sent again at its own times, and judged against limits."""
