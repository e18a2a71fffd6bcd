"""Correction functions, calibrations and correction schemes."""
