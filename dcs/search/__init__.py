"""Searching correction schemes: simulated annealing and exhaustive search."""
