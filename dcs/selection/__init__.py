"""What is tried and what is chosen: settings, cross-validation, front, methods."""
