"""Correction methods: their parameters, calibrations, and fits."""
