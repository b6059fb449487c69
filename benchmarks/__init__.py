"""Side-by-side measurements, one command each: `make bench-NAME`. Never in the wheel."""
