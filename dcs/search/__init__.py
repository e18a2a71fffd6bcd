"""Search for correction schemes: simulated annealing and its compiled kernels."""
