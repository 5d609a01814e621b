"""The reference backend: it interprets the lowered loops in NumPy, on any number of simulated devices."""
