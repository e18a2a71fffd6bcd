"""The MLflow store: writing runs, reading them back, serving schemes."""
