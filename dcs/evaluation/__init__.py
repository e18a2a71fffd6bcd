"""Evaluation of predictions: metrics, the objective Z, intervals, paired tests and drift."""
