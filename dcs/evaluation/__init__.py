"""Evaluation of predictions: metrics, the objective Z, intervals and paired tests."""
