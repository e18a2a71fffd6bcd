"""Items mapped here and as Ray tasks: the same results, in order, within bounds."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    RpcError,
    WorkerCrashedError,
)

from dcs_tracking import CellRecord
from dcs_workflows.cluster.connect import place
from dcs_workflows.cluster.driver import RayMapper, run_cells
from dcs_workflows.config.sweep import TunerSettings
from dcs_workflows.study.study import Setup
from tests.workflows.conftest import QUICK, biased_table, toy_cell

TABLE = biased_table(60)
TABLES = {"optimization": TABLE, "test": TABLE}
CELL = toy_cell(TABLE, method="dcs", tuner=TunerSettings(**QUICK))


def _slow_first(number: int) -> int:
    time.sleep(0.3 if number == 0 else 0.0)
    return number


@pytest.mark.parametrize(("width", "ahead"), [(1, 3), (2, 1), (8, 3)])
def test_results_come_in_order_and_items_no_further_ahead_than_allowed(cluster, width, ahead):
    results: list[int] = []
    left: list[int] = []

    def items() -> Iterator[int]:
        for number in range(8):
            left.append(number - len(results))
            yield number

    mapper = RayMapper(width=width)
    for result in mapper(_slow_first, items(), ahead=ahead):
        results.append(result)
    assert results == list(mapper(_slow_first, range(8))) == list(range(8))
    assert list(mapper(_slow_first, [])) == []
    assert max(left) < ahead
    if width >= ahead > 1:
        assert max(left) == ahead - 1


def _fan_out(numbers: list[int], options: dict[str, Any]) -> tuple[list[int], list[int]]:
    found = list(RayMapper(width=4, options=options)(_with_pid, numbers, ahead=4))
    return [value for value, _ in found], [os.getpid(), *(pid for _, pid in found)]


def _with_pid(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def test_tasks_that_wait_for_tasks_do_not_block_each_other(cluster):
    """More tasks than CPUs, each of which waits for tasks of its own."""
    import ray

    options = place(ray.nodes()).cells
    assert "resources" in options
    outer = ray.remote(_fan_out).options(**options)
    answers = ray.get([outer.remote(list(range(4)), options) for _ in range(3)], timeout=100)
    for values, (parent, *helpers) in answers:
        assert values == [n * n for n in range(4)]
        assert parent not in helpers


def _never_ends(folder: Path, number: int) -> int:
    (folder / str(os.getpid())).touch()
    if number == 0:
        while len(list(folder.iterdir())) < 2:
            time.sleep(0.01)
        raise KeyError("zero")
    while True:
        time.sleep(0.01)


def test_the_others_are_cancelled_when_one_fails(cluster, tmp_path):
    import ray

    with pytest.raises(KeyError, match="zero"):
        list(RayMapper(width=2)(functools.partial(_never_ends, tmp_path), range(9)))
    # Both CPUs are free again: this would wait for ever.
    task = ray.remote(num_cpus=2)(_slow_first)
    assert ray.get(task.remote(5), timeout=60) == 5


def _computed(error: Exception) -> CellRecord:
    """Compute a cell whose trials meet an error."""

    def failing(*arguments: object, **options: object) -> Iterator[Any]:
        raise error

    (record,) = run_cells((CELL,), TABLES, Setup(mapper=failing))
    return record


@pytest.mark.parametrize("error", [NodeDiedError("gone"), LocalRayletDiedError(), RpcError("x")])
def test_what_the_cluster_loses_is_no_failure_of_the_cell(error):
    with pytest.raises(type(error)):
        _computed(error)


@pytest.mark.parametrize("error", [WorkerCrashedError(), OutOfMemoryError("x"), ValueError("x")])
def test_what_a_cell_may_be_at_fault_for_is_its_failure(error):
    assert not _computed(error).finished
