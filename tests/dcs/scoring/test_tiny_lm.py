"""What the packaged model is promised to be. Figures are on a part of the test texts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from dcs.evaluation.metrics import ClassificationMetrics
from dcs.prompting.files import get_task
from dcs.prompting.tasks import (
    Demonstrations,
    Shots,
    render_prefix,
    render_query,
    select_demonstrations,
)
from dcs.scoring import Scorer

ROWS = 200


def score(scorer: Scorer, name: str, demonstrations: Demonstrations) -> NDArray[np.float64]:
    task = get_task(name)
    queries = [render_query(task, e.text) for e in task.examples("test")[:ROWS]]
    return scorer.score(render_prefix(task, demonstrations), queries, task.label_words)


def test_weak_but_above_chance_and_biased(tiny_scorer: Scorer) -> None:
    cobias = []
    for name in ("helpdesk", "reviews"):
        task = get_task(name)
        labels = np.array([example.label for example in task.examples("test")[:ROWS]])
        several: tuple[Shots, ...] = (1, "N")
        for shots in several:
            shown = select_demonstrations(task, shots, seed=0)
            found = score(tiny_scorer, name, shown).argmax(axis=1)
            metrics = ClassificationMetrics.from_predictions(labels, found, task.n_classes)
            assert 1 / task.n_classes + 0.1 < metrics.accuracy < 0.85
            cobias.append(metrics.cobias)
    assert max(cobias) >= 0.15


@pytest.mark.parametrize("name", ["helpdesk", "reviews"])
def test_it_reads_the_labels_of_the_demonstrations(tiny_scorer: Scorer, name: str) -> None:
    task = get_task(name)
    shown = select_demonstrations(task, "N", seed=0)
    others = [replace(e, label=(e.label + 1) % task.n_classes) for e in shown.examples]
    shuffled = replace(shown, examples=tuple(others))
    as_given, moved = (score(tiny_scorer, name, d) for d in (shown, shuffled))
    assert np.abs(as_given - moved).sum(axis=1).mean() > 0.05
    assert (as_given.argmax(axis=1) != moved.argmax(axis=1)).mean() > 0.02
