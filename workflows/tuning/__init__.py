"""Compute one cell: Optuna studies and the cross-validated front."""
