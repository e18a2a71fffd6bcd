"""Contracts of scorers, methods, calibrations and forms, for the tests of whoever adds one.

Each function returns nothing if its object keeps the contract, and raises an AssertionError that
says what it breaks otherwise, like :func:`sklearn.utils.estimator_checks.check_estimator`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dcs.data.columns import PREFIX, Reading
from dcs.data.forms.plain import Form
from dcs.data.reader import FORMS, open_source
from dcs.data.table import ProbabilityTable
from dcs.methods.calibrations import FittedCalibration
from dcs.prompting.files import get_task
from dcs.prompting.tasks import render_prefix, render_query, select_demonstrations
from dcs.schemes.scheme import CorrectionScheme
from dcs.scoring.base import Scorer
from dcs.selection.methods import Method


def check_scorer(
    scorer: Scorer, queries: Sequence[str] = (), label_words: Sequence[str] = ()
) -> None:
    """Check that the rows of a scorer are probabilities, and depend on their own prompt alone.

    Parameters
    ----------
    scorer : Scorer
        The scorer, with its model loaded.
    queries : sequence of str, optional
        At least two prompts that the model can tell apart; by default of a packaged task.
    label_words : sequence of str, optional
        At least two answers to them.
    """
    _require(isinstance(scorer, Scorer), "the protocol dcs.scoring.Scorer is not fulfilled")
    for name in ("name", "version", "model", "revision"):
        value = getattr(scorer, name)
        _require(isinstance(value, str) and value != "", f"{name} is not a text: {value!r}")
    task = get_task("reviews")
    prefix = "" if queries else render_prefix(task, select_demonstrations(task, 2, seed=0))
    asked = list(queries) or [render_query(task, e.text) for e in task.examples("test")[:16]]
    words = list(label_words or task.label_words)
    steps: list[int] = []
    probs = scorer.score(prefix, asked, words, progress=steps.append)
    shape = (len(asked), len(words))
    _require(probs.shape == shape, f"{probs.shape} probabilities for {shape} queries and labels")
    _require(probs.dtype == np.float64, f"probabilities are {probs.dtype}, not float64")
    _require(bool((probs >= 0).all()), "a probability is negative or NaN")
    _same(probs.sum(axis=1), np.ones(len(asked)), "a row does not sum to 1", 1e-9)
    _require(sum(steps) == len(asked), f"progress counts {sum(steps)} of {len(asked)} queries")
    _require(bool(np.ptp(probs, axis=0).max() > 1e-6), "all queries have the same probabilities")
    order = np.random.default_rng(0).permutation(len(asked))
    shuffled = scorer.score(prefix, [asked[k] for k in order], words)
    _same(shuffled, probs[order], "rows depend on the order of the queries", 1e-5)
    alone = scorer.score(prefix, asked[-1:], words)
    _same(alone, probs[-1:], "a row depends on the other queries", 1e-5)
    reverse = scorer.score(prefix, asked, words[::-1])
    _same(reverse[:, ::-1], probs, "columns do not follow the label words", 1e-6)
    empty = scorer.score(prefix, [], words).shape
    _require(empty == (0, len(words)), f"no queries give {empty} probabilities")


def check_method(method: Method) -> None:
    """Check that a method fits usable, repeatable schemes of simulated rows.

    Parameters
    ----------
    method : Method
        The method. It is fitted eight times, to at most 120 rows of 2 and 4 classes; in one
        case a class has no row, in another half of the rows have no label.
    """
    for n_classes in (2, 4):
        probs, labels = _simulated(120, n_classes)
        names = tuple(f"class {k}" for k in range(n_classes))
        half = np.where(np.arange(labels.size) % 2, labels, -1)
        kept = labels < n_classes - 1
        cases = {"all rows": (probs, labels), "half of the rows labelled": (probs, half)}
        cases["a class without rows"] = (probs[kept], labels[kept])
        for case, (rows, given) in cases.items():
            what = f"{method.name}, {n_classes} classes, {case}"
            before = rows.copy(), given.copy()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of the class without rows
                scheme = method.fit(rows, given, classes=names, seed=1)
            read = CorrectionScheme.from_dict(json.loads(scheme.to_json()))
            _require(read == scheme, f"{what}: the scheme is another one after saving")
            corrected = scheme.apply(probs)
            _require(bool((corrected >= 0).all()), f"{what}: corrects to a negative value or NaN")
            for old, new in zip(before, (rows, given), strict=True):
                _same(old, new, f"{what}: changes its arguments", 0.0)
            if case == "all rows":
                again = method.fit(rows, given, classes=names, seed=1)
                _require(again == scheme, f"{what}: the same seed gives another scheme")


def check_calibration(calibration: FittedCalibration) -> None:
    """Check that a calibration is repeatable, and what its flags say.

    Parameters
    ----------
    calibration : FittedCalibration
        The calibration. It is fitted to 120 rows of 3 classes, of which a quarter has no label.
    """
    (probs, labels), what = _simulated(120, 3), calibration.name
    labels = np.where(np.arange(labels.size) % 4 > 0, labels, -1)

    def apply(given: NDArray[np.int64]) -> NDArray[np.float64]:
        fitted = calibration.fit(probs, given, ridge=10.0, anchor=1.0)
        return probs if fitted is None else fitted.apply(probs)

    found = apply(labels)
    _require(found.shape == probs.shape, f"{what}: {found.shape} probabilities, not {probs.shape}")
    _same(found.sum(axis=1), np.ones(len(probs)), f"{what}: a row does not sum to 1", 1e-9)
    _same(apply(labels), found, f"{what}: the same rows give another calibration", 0.0)
    if not calibration.needs_labels:
        _same(apply(labels[::-1]), found, f"{what}: labels determine it", 0.0)
    if calibration.adds_offsets:
        offsets = np.log(found) - np.log(probs)
        offsets -= offsets[:, :1]
        added = np.broadcast_to(offsets[0], offsets.shape)
        _same(offsets, added, f"{what}: rows have different offsets", 1e-6)


def check_form(
    form: Form, frame: pd.DataFrame, table: ProbabilityTable, given: Reading | None = None
) -> None:
    """Check that a form alone recognises rows, and reads them in any order, labelled or not.

    Parameters
    ----------
    form : Form
        The form, one of :data:`dcs.data.reader.FORMS`.
    frame : DataFrame
        Rows as they are in a file.
    table : ProbabilityTable
        What they are.
    given : Reading, optional
        What a user has to specify.
    """
    before, hint = frame.copy(deep=True), given or Reading()
    plain = pd.DataFrame(table.probs, columns=[PREFIX + name for name in table.classes])
    _require(
        not form.sniff(plain, Reading()), f"{form.name}: takes a column per class for its own"
    )
    for step in (1, -1):
        for rows in (frame[::step].reset_index(drop=True), frame[::step][frame.columns[::-1]]):
            first = next((each for each in FORMS if each.sniff(rows, hint)), None)
            _require(first is form, f"{form.name}: rows are taken for {first and first.name}")
            found = open_source(rows, hint).table.with_classes(table.classes)
            _same(found.probs, table.probs[::step], f"{form.name}: other probabilities", 1e-6)
            _same(found.labels, table.labels[::step], f"{form.name}: other labels", 0.0)
    known = open_source(frame, hint).reading
    rows = frame.drop(columns=[name for name in frame if name == known.label])
    found = open_source(rows, known=known).table.with_classes(table.classes)
    _same(found.probs, table.probs, f"{form.name}: other probabilities without labels", 1e-6)
    pd.testing.assert_frame_equal(frame, before)


def _simulated(n_rows: int, n_classes: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return informative probabilities that favour some classes, and labels of every class.

    No probability is so small that :data:`dcs.schemes.calibration.DEFAULT_FLOOR` would raise it.
    """
    rng = np.random.default_rng(n_classes)
    labels = rng.permutation(np.arange(n_rows) % n_classes)
    logits = rng.normal(size=(n_rows, n_classes)) + np.linspace(-1.0, 1.0, n_classes)
    logits[np.arange(n_rows), labels] += 1.5
    weights = np.exp(np.clip(logits, -3.0, 3.0))
    return weights / weights.sum(axis=1, keepdims=True), labels


def _require(kept: bool, message: str) -> None:
    if not kept:
        raise AssertionError(message)


def _same(found: NDArray[Any], expected: NDArray[Any], fault: str, by: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=by, err_msg=fault)
