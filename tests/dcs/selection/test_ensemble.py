from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from dcs.data.reader import read_table
from dcs.data.table import ProbabilityTable
from dcs.data.values import to_shares
from dcs.errors import InvalidInputError, TableError
from dcs.methods.calibrations import CALIBRATIONS, fit_stack
from dcs.methods.parameters import Hyperparameters
from dcs.schemes.calibration import mean_combination
from dcs.schemes.corrections import Membership, Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.compare import SelectionSettings, front_of
from dcs.selection.ensemble import TableEnsemble, combine, mean_of
from dcs.selection.fitting import Fitting
from tests.dcs.biased import biased_table, labelled
from tests.dcs.refusals import refuses

_CLASSES = ("a", "b", "c")


def _tables(n_rows: int, *seeds: int) -> dict[str, ProbabilityTable]:
    """Return tables of the same labels, each with noise of its own."""
    probs, labels = biased_table(n_rows, 3)
    made = {}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        logits = rng.normal(0.0, 1.0, probs.shape) + 1.2 * np.eye(3)[labels]
        logits[:, seed % 3] += 1.0
        made[f"t{seed}"] = ProbabilityTable.from_arrays(
            to_shares(np.exp(logits), "scores"), labels, classes=_CLASSES
        )
    return made


def _accuracy(table: ProbabilityTable) -> float:
    return float(np.mean(table.probs.argmax(axis=1) == table.labels))


def test_rows_and_classes_in_any_order_are_matched() -> None:
    first, second = _tables(60, 0, 1).values()
    order = np.random.default_rng(0).permutation(60)
    shuffled = second.subset(order).with_classes("cab")
    found = TableEnsemble.matched({"x": first, "y": shuffled})
    assert found.digest == TableEnsemble.matched({"x": first, "y": second}).digest
    assert np.array_equal(found.probs, [first.probs, second.probs])
    # What is not in all tables is left out, but not when a scheme is applied.
    part = shuffled.subset([row != "7" for row in shuffled.ids])
    smaller = TableEnsemble.matched({"x": first, "y": part})
    assert smaller.tables[0].ids == tuple(row for row in first.ids if row != "7")
    assert smaller.tables[1].ids == smaller.tables[0].ids
    refuses(TableError, TableEnsemble.of, mean_of(found), [("x", first), ("y", part)])


def test_a_label_missing_in_one_table_is_taken_from_another() -> None:
    first, second = _tables(60, 0, 1).values()
    some = {"x": labelled(first, np.arange(60) < 30), "y": labelled(second, np.arange(60) >= 20)}
    assert np.array_equal(TableEnsemble.matched(some).labels, first.labels)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: replace(t, labels=(t.labels + (np.arange(60) == 7)) % 3),
        lambda t: t.subset(range(31, 60)),
        lambda t: t.subset(range(50)),
        lambda t: replace(t, classes=("a", "b", "d")),
        lambda t: replace(t, ids=range(60, 120)),
    ],
    ids=["label", "rows", "numbers", "classes", "ids"],
)
def test_tables_of_other_rows_are_refused(change) -> None:  # type: ignore[no-untyped-def]
    first, second = _tables(60, 0, 1).values()
    with pytest.raises(TableError, match="other"):
        TableEnsemble.matched({"first": first, "other": change(second)})


def test_ids_beside_rows_without_are_refused() -> None:
    frame = pd.DataFrame(_tables(60, 0)["t0"].probs, columns=_CLASSES)
    for ids in (np.random.default_rng(0).permutation(60), range(1, 61)):
        both = {"named": read_table(frame.assign(id=ids)), "other": read_table(frame)}
        refuses(TableError, TableEnsemble.matched, both, names=["'named', 'other'"])
    both["other"] = read_table(frame.assign(id=range(60)))
    refuses(TableError, TableEnsemble.matched, both, names=["'named', 'other'"])
    first = _tables(60, 0)["t0"]
    written = {"x": first.subset(range(40)), "y": first.subset(range(20, 60))}
    assert TableEnsemble.matched(written).tables[0].ids == first.ids[20:40]


def test_the_mean_of_copies_of_a_table_is_the_table() -> None:
    (table,) = _tables(400, 0).values()
    mean = mean_combination(3, 3).apply(np.array([table.probs] * 3))
    np.testing.assert_allclose(mean, table.probs, atol=1e-3)


def test_a_stack_is_a_balanced_regression_with_the_class_shares_of_the_labels() -> None:
    found = TableEnsemble.matched(_tables(400, 0, 1))
    labels, logs = found.labels, np.log(np.hstack([*found.probs]))
    regression = LogisticRegression(C=1e6, class_weight="balanced", tol=1e-8, max_iter=5000)
    expected = regression.fit(logs, labels).predict_proba(logs) * (np.bincount(labels) + 1)
    stacked = fit_stack(found.probs, labels, ridge=1e-6).apply(found.probs)
    np.testing.assert_allclose(stacked, expected / expected.sum(1)[:, None], atol=2e-3)
    # The ridge counts in rows.
    twice = fit_stack(np.tile(found.probs, (1, 2, 1)), np.tile(labels, 2), ridge=18)
    once = fit_stack(found.probs, labels, ridge=9)
    np.testing.assert_allclose(twice.matrix, once.matrix, atol=1e-4)


def test_what_the_rows_show_best_is_chosen() -> None:
    equal = TableEnsemble.matched(_tables(2000, 0, 1, 2))
    scheme, table = combine(equal)
    assert scheme == mean_of(equal)
    assert _accuracy(table) > max(map(_accuracy, equal.tables)) + 0.02
    # Beside two good ones, a table that says little spoils the mean.
    rng = np.random.default_rng(5)
    poor = equal.tables[2].with_probs(rng.dirichlet([0.2] * 3, 2000))
    named = dict(zip(equal.names, (*equal.tables[:2], poor), strict=True))
    many = TableEnsemble.matched(named)
    scheme, table = combine(many)
    assert scheme.inputs == many.names
    assert scheme.combination is not None and scheme.combination.name == "stack"
    # Each row is combined by a stack that has not seen it.
    assert table.digest != many.combined(scheme).digest
    # Nor a copy of it.
    rows = np.repeat(np.arange(1000), 2)
    twice = {}
    for name, each in named.items():
        doubled = each.probs[rows], each.labels[rows]
        twice[name] = ProbabilityTable.from_arrays(*doubled, classes=_CLASSES, groups=rows)
    _, table = combine(TableEnsemble.matched(twice))
    np.testing.assert_array_equal(table.probs[::2], table.probs[1::2])
    # Of a table and one that says nothing, the first alone is the best.
    good = equal.tables[0].subset(range(100))
    noise = good.with_probs(rng.dirichlet([1.0] * 3, 100))
    small = TableEnsemble.matched({"good": good, "noise": noise})
    scheme, table = combine(small)
    assert (scheme.inputs, scheme.combination) == (("good",), None)
    assert table.digest == small.tables[0].digest


def test_rows_without_labels_are_combined_too() -> None:
    ensemble = TableEnsemble.matched(_tables(300, 0, 1))
    hidden = TableEnsemble(
        tuple(labelled(table, np.arange(300) < 200) for table in ensemble.tables), ensemble.names
    )
    scheme, table = combine(hidden)
    assert scheme == combine(ensemble.subset(range(200)))[0]
    np.testing.assert_array_equal(table.probs[200:], hidden.combined(scheme).probs[200:])
    unlabelled = hidden.subset(range(200, 300))
    assert combine(unlabelled)[0] == mean_of(unlabelled)


def test_scheme_of_several_tables_round_trip_and_order_of_classes() -> None:
    ensemble = TableEnsemble.matched(_tables(300, 0, 1))
    stack = fit_stack(ensemble.probs, ensemble.labels)
    linear = CALIBRATIONS["linear"].fit(ensemble.probs[0], ensemble.labels, ridge=9.0, anchor=0.0)
    corrections = (Weight(0.5), Membership(0, 0.5, 1), Weight(1.0))
    scheme = CorrectionScheme(_CLASSES, corrections, {"seed": 1}, linear, stack, ensemble.names)
    assert CorrectionScheme.from_dict(json.loads(scheme.to_json())) == scheme
    for wrong in (ensemble.probs[:1], ensemble.probs[0], ensemble.probs[:, :, :2]):
        refuses(InvalidInputError, scheme.apply, wrong)
    refuses(InvalidInputError, CorrectionScheme, _CLASSES, scheme.corrections, combination=stack)


def test_accuracy_is_held_against_the_tables_before_they_were_combined() -> None:
    (table,) = _tables(260, 0).values()
    labels = np.where(np.arange(260) < 200, table.labels, -1)
    before = np.roll(table.labels, 1)
    setting = Hyperparameters(calibration="batch", corrections="none")
    fitting = Fitting(table.probs, labels, 5, seed=0)
    given = {"settings": SelectionSettings(betas=(0.3,)), "reference": before}
    found = front_of(fitting, fitting.judge([setting]), classes=_CLASSES, **given)
    right = np.mean(before[:200] == labels[:200])
    for point in found.points:
        assert point.change.accuracy == pytest.approx(np.trace(point.confusion) / 200 - right)
