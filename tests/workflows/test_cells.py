"""A cell's key is the hash of all that decides its result, and of nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from dcs.io import content_key
from workflows.config.sweep import TunerSettings
from workflows.plan import Cell, sharing

CELL = Cell(
    model="tiny_lm",
    task="reviews",
    shots=1,
    seed=0,
    method="dcs",
    tuner=TunerSettings(),
    optimization_digest="a",
    test_digest="b",
)


def test_the_key_does_not_depend_on_the_process():
    # A literal: were it to change, finished work on users' disks would not be found again.
    assert content_key({"b": [1, "N", None], "a": 0.5}) == "6f0b8c5d40e517720eb52d1113928870"


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"task": "helpdesk"},
        {"shots": "N"},
        {"shots": None},
        {"seed": 1},
        {"method": "dnip"},
        {"tuner": TunerSettings(trials=31)},
        {"tuner": None},
        {"optimization_digest": "c"},
        {"test_digest": "c"},
    ],
)
def test_every_part_of_a_cell_counts(change):
    assert dataclasses.replace(CELL, **change).key != CELL.key


def test_cells_that_share_a_search_are_together():
    names = ("published", "icl", "published-balanced", "published-long", "dcs")
    cells = [dataclasses.replace(CELL, method=name) for name in names]
    groups = [[cell.method for cell in group] for group in sharing(cells)]
    assert groups == [["published", "published-balanced"], ["icl"], ["published-long"], ["dcs"]]
    other = dataclasses.replace(cells[2], optimization_size=50)
    assert sharing([cells[0], other]) == [(cells[0],), (other,)]
