"""Search for correction schemes: simulated annealing, exhaustive search and lower bounds."""
