"""What predictions are worth: metrics, the objective Z, intervals and paired tests."""
