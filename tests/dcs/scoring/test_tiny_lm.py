"""What the packaged model is promised to be. Figures are on a part of the test texts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dcs.evaluation.metrics import ClassificationMetrics
from dcs.prompting.files import get_task
from dcs.prompting.tasks import Demonstrations, render_prefix, render_query, select_demonstrations
from dcs.scoring import Scorer

ROWS = 200


def score(scorer: Scorer, name: str, demonstrations: Demonstrations) -> NDArray[np.float64]:
    task = get_task(name)
    queries = [render_query(task, e.text) for e in task.examples("test")[:ROWS]]
    return scorer.score(render_prefix(task, demonstrations), queries, task.label_words)


def test_weak_but_above_chance_biased_and_reads_the_demonstrations(tiny_scorer: Scorer) -> None:
    cobias = []
    for name in ("helpdesk", "reviews"):
        task = get_task(name)
        labels = np.array([example.label for example in task.examples("test")[:ROWS]])
        shown = select_demonstrations(task, "N", seed=0)
        probs = score(tiny_scorer, name, shown)
        found = probs.argmax(axis=1)
        metrics = ClassificationMetrics.from_predictions(labels, found, len(task.classes))
        assert 1 / len(task.classes) + 0.1 < metrics.accuracy < 0.85
        cobias.append(metrics.cobias)
        others = [replace(e, label=(e.label + 1) % len(task.classes)) for e in shown.examples]
        moved = score(tiny_scorer, name, replace(shown, examples=tuple(others)))
        assert np.abs(probs - moved).sum(axis=1).mean() > 0.05
        assert (found != moved.argmax(axis=1)).mean() > 0.02
    assert max(cobias) >= 0.15
