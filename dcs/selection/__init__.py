"""Selection of schemes: settings, cross-validation, front, methods."""
