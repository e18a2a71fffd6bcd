"""The sweeps of the benchmarks run on the same cluster, by the same command line."""

from tests.workflows.conftest import cluster, dcs

__all__ = ["cluster", "dcs"]
