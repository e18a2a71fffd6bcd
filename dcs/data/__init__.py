"""Probability tables: checks, files, splits and forms."""
