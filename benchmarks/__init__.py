"""What measures the project; run as ``python -m benchmarks.NAME``, not installed."""
