"""Probability tables: checks, files, splits and importers."""
