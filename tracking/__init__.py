"""MLflow: runs, queries and tables of sweeps."""
