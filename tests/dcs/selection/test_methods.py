"""Methods: one name each, the corrections each may choose from, and what they fit."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dcs.schemes.calibration import DEFAULT_FLOOR
from dcs.search.schedule import Schedule
from dcs.selection.compare import front_of, standard_settings
from dcs.selection.fitting import Fitting
from dcs.selection.methods import PUBLISHED_GRID, get_method, method_names
from tests.dcs.biased import biased_table, judged

_PROBS, _LABELS = biased_table(240, 3)
#: Weights, or first corners of memberships, that the published methods chose in earlier versions.
_GOLDEN = [0.9222222222222223, 0.12222222222222222, 0.875]


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    ("name", "class_weight"), [("logistic", None), ("logistic-balanced", "balanced")]
)
def test_logistic_is_scikit_learns(n_classes: int, name: str, class_weight: str | None) -> None:
    probs, labels = biased_table(240, n_classes)
    logs = np.log(np.maximum(probs, DEFAULT_FLOOR))
    model = LogisticRegression(max_iter=5000, class_weight=class_weight).fit(logs, labels)
    scheme = get_method(name).fit(probs, labels)
    assert scheme.provenance["method"] == name
    np.testing.assert_allclose(scheme.apply(probs), model.predict_proba(logs), atol=1e-9)


@pytest.mark.parametrize("name", ["drops", "surrogate"])
def test_peers_reduce_the_bias_of_rows_they_have_not_seen(name: str) -> None:
    probs, labels = biased_table(2000, 4, seed=2)
    scheme = get_method(name).fit(probs[:1200], labels[:1200])
    before, after = judged(scheme, probs[1200:], labels[1200:])
    assert after.cobias < 0.6 * before.cobias
    assert after.weakest_class > before.weakest_class


def test_the_grid_is_what_the_four_rules_leave() -> None:
    def skipped(alpha: float, beta: float, tau: float) -> bool:
        return (
            (alpha == beta == tau == 0)
            or (alpha == beta == 0 and tau != 1)
            or (alpha == tau == 0 and beta != 1)
            or (beta == tau == 0 and alpha != 1)
        )

    terms = itertools.product((0, 0.5, 1, 2), (0.5, 1, 2.7, 3, 10), (0, 0.2, 1, 5))
    left = [(*weights, d) for weights in terms if not skipped(*weights) for d in (30, 50, 70, 90)]
    assert [tuple(each.values()) for each in PUBLISHED_GRID] == left
    assert len(PUBLISHED_GRID) == 304


def test_published_selects_the_best_of_all_combinations_as_in_earlier_commits() -> None:
    selection = get_method("published").compared(_LABELS.size)
    assert selection is not None
    assert len(selection.candidates) == len(PUBLISHED_GRID)
    for name, moves in (("published", (3, 6)), ("published-long", (150, 300))):
        own = get_method(name).compared(_LABELS.size)
        schedules = {each.schedule for each in own.candidates} if own else {}
        assert schedules == {Schedule.published(228, *moves)}
    fitting = Fitting(_PROBS, _LABELS, **selection.judge, seed=0)
    assert fitting.truth.size == 12
    fits = fitting.judge(standard_settings(selection, 3))
    best = min(fits, key=lambda fit: (-fit.accuracy, fit.cobias))
    # The other rule selects from the same fits.
    for name in ("published", "published-balanced"):
        rule = get_method(name).compared(_LABELS.size)
        assert rule is not None
        scheme = front_of(fitting, fits, settings=rule, classes=("a", "b", "c")).scheme
        assert scheme.provenance["method"] == name
        assert name != "published" or scheme.corrections == best.schemes[0].corrections
        chosen = json.loads(scheme.to_json())["corrections"]
        assert [each.get("value", each.get("a")) for each in chosen] == _GOLDEN


def test_methods_of_the_paper_are_listed_without_their_peers() -> None:
    assert method_names() == ("icl", "dnip", "furud", "dcs")
