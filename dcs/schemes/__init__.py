"""Correction functions, calibrations, and the schemes made of them."""
