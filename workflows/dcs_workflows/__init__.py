"""Ray, Optuna and the command line around the method."""
