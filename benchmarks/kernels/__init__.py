"""The activation kernels beside their rivals, on a card: `python -m benchmarks.kernels`."""
