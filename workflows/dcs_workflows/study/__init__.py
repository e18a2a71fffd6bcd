"""Compute one cell: an Optuna study, its judge, and the choice from its front."""
