"""The sweeps of the benchmarks run on the same cluster."""

from tests.workflows.conftest import cluster

__all__ = ["cluster"]
