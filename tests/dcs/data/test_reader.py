"""One table, written in many ways: each is read as it is, or a question is asked; none wrongly."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcs import CorrectionScheme, DCSClassifier, fit_scheme, get_method
from dcs.data.checks import checked_rows
from dcs.data.columns import Reading
from dcs.data.labels import in_other_order
from dcs.data.reader import (
    open_source,
    open_sources,
    read_table,
    refuse_other_texts,
    refuse_shared_texts,
    texts_by_id,
)
from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError, DCSError, TableError
from dcs.schemes.calibration import mean_combination
from dcs.selection.compare import SelectionSettings
from tests.dcs.refusals import refuses

CLASSES = ["Billing", "Technical issue", "Access", "Other", "Cancel, refund"]
RNG = np.random.default_rng(5)
LABELS = RNG.integers(0, 5, 120)
PROBS = RNG.dirichlet(np.full(5, 0.7), 120)
PROBS[np.arange(120), LABELS] += 0.4
PROBS /= PROBS.sum(axis=1, keepdims=True)
GOLD = [CLASSES[k] for k in LABELS]
TOP = [CLASSES[k] for k in PROBS.argmax(axis=1)]
TEXTS = [f"message number {k}, of a customer" for k in range(120)]


def columns(values: Any = PROBS, form: str = "{}", classes: Any = CLASSES) -> pd.DataFrame:
    return pd.DataFrame(values, columns=[form.format(name) for name in classes])


def rounded(decimals: int) -> Any:
    return np.round(PROBS, decimals)


def texts(form: str, values: Any = PROBS) -> Any:
    return [[form.format(value) for value in row] for row in values]


def comma(form: str, values: Any = PROBS) -> Any:
    return [[form.format(value).replace(".", ",") for value in row] for row in values]


def csv_of(frame: pd.DataFrame, path: Path, separator: str = ",", **options: Any) -> Path:
    frame.to_csv(path.with_suffix(".csv"), sep=separator, index=False, **options)
    return path.with_suffix(".csv")


LOGS = np.log(PROBS)
HALF = PROBS[:, 0]
VOTES = np.array([RNG.multinomial(10, row) for row in PROBS])
SPARSE = [["" if v < 0.004 else f"{v:.4f}" for v in row] for row in PROBS]

LABEL = {"label": GOLD}

#: Class columns, other columns, tolerance, and the separator unless it is a comma.
WAYS: dict[str, tuple[Any, ...]] = {
    "two decimals": (columns(rounded(2)), LABEL, 0.03),
    "suffix": (columns(form="{}_prob"), {"gold": GOLD}, 1e-12),
    "per cents": (columns(texts("{:.1%}")), LABEL, 0.003),
    "per cents, comma": (columns(comma("{:.1%}")), LABEL, 0.003, ";"),
    "spaced per cents": (columns(texts("{:.2f} %", 100 * PROBS)), {"y": GOLD}, 3e-4),
    "of a hundred": (columns(100 * rounded(5)), LABEL, 1e-4, "\t"),
    "quoted comma": (columns(comma("{:.6f}")), LABEL, 1e-5),
    "rounded logs": (columns(np.round(LOGS, 3), "logprob_{}"), LABEL, 2e-3),
    "base 2": (columns(np.log2(PROBS)), LABEL, 1e-9),
    "base 10": (columns(np.log10(PROBS)), LABEL, 1e-9),
    "unnormalised logs": (columns(LOGS - 1.0), LABEL, 1e-9),
    "empty cells": (columns(SPARSE), LABEL, 0.02),
    "floats as labels": (columns(), {"label": [None, *LABELS[1:].astype(float)]}, 1e-12),
    "a label column of another name": (columns(form="P_queue{}"), {"queue": GOLD}, 1e-12),
    "with predictions": (columns(), {"predicted": TOP, "label": GOLD}, 1e-12),
    "predictions as label": (columns(), {"label": TOP, "gold": GOLD}, 1e-12),
    "names beside numbers": (columns(), {"label": 4 - LABELS, "label_text": GOLD}, 1e-12),
    "predictions as numbers": (columns(), {"label": LABELS, "pred": PROBS.argmax(axis=1)}, 1e-12),
    "numbers beside names": (columns(), {"label": GOLD, "label_id": 4 - LABELS}, 1e-12),
    "numbers of something else": (columns(), {"label": GOLD, "y": [0, 1, 2] * 40}, 1e-12),
    "predictions in Spanish": (columns(), {"etiqueta": GOLD, "Predicción": GOLD[::-1]}, 1e-12),
    "with numbers": (columns(), {"length": range(120), "score": np.ones(120), **LABEL}, 1e-12),
    "others of a prefix": (columns(form="p_{}"), {"p_entropy": PROBS[:, 0], **LABEL}, 1e-12),
    "other lists": (columns(), {"tokens": [[0] * (k % 3) for k in LABELS], **LABEL}, 1e-12),
    "with ids": (columns(), {"ticket_id": [f"T{k}" for k in range(120)], **LABEL}, 1e-12),
    "an index": (columns(), {"Unnamed: 0": range(120), **LABEL}, 1e-12),
}


@pytest.mark.parametrize("way", WAYS)
def test_one_table_written_differently(way: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    frame, others, tolerance, *mark = WAYS[way]
    before = pd.DataFrame({**others, "text": TEXTS})
    path = csv_of(pd.concat([before, frame], axis=1), Path("(1) rows"), *mark)
    found = open_source(path)
    table = found.table
    order = [table.classes.index(name) for name in CLASSES]
    np.testing.assert_allclose(table.probs[:, order], PROBS, atol=tolerance)
    known = table.labelled
    assert [order.index(k) for k in table.labels[known]] == LABELS[known].tolist()
    assert known.sum() == (119 if way == "floats as labels" else 120)
    assert (table.ids[3] == "T3") == ("with ids" in way)
    assert "\n" not in found.remark and found.frame["text"].tolist() == TEXTS
    # The next file of the same kind, one unlabelled row of it, is read in the same way.
    rest = pd.concat([before, frame], axis=1)[:9].drop(columns=list(others))
    again = open_source(csv_of(rest, tmp_path / "next", *mark), known=found.reading).table
    assert again.classes == table.classes
    np.testing.assert_allclose(again.probs, table.probs[:9], atol=1e-9)


def spoilt(**changes: Any) -> pd.DataFrame:
    frame = pd.concat([columns(), pd.DataFrame({"label": GOLD})], axis=1).astype(object)
    for name, (row, value) in changes.items():
        frame.loc[row, name] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (spoilt(Billing=(7, 0.9)), "row 7"),
        (spoilt(Billing=(7, -0.5)), "row 7"),
        (spoilt(Access=(9, "high")), "row 9"),
        (spoilt(label=(11, "Biling")), "row 11"),
        (columns(2 * PROBS).assign(label=GOLD), "values=scores"),
        (columns(LOGS + 3.0), "columns="),
        (columns(np.hstack([LOGS[:, :1], PROBS[:, 1:]])).assign(label=GOLD), "values=logits"),
        (columns(classes="abcde").assign(label=[str(k + 2) for k in LABELS]), "label is '5'"),
        (columns().assign(label=GOLD, truth=GOLD[::-1]), "label=COLUMN"),
        (columns().assign(first=GOLD, second=GOLD[::-1]), "label=COLUMN"),
        (columns().assign(label=GOLD, human=GOLD[::-1]), "label=COLUMN"),
        (columns().assign(actual=GOLD[::-1], expected=LABELS), "label=COLUMN"),
        (columns().assign(label=GOLD[::-1], gold=LABELS + 1), "label=COLUMN"),
        (columns().assign(label=GOLD[::-1], clean_label=GOLD), "label=COLUMN"),
        (columns().assign(label=GOLD[::-1], final_label=GOLD), "label=COLUMN"),
        (columns().assign(category=[0, 1, 2] * 40, queue=GOLD), "label=COLUMN"),
        (columns(rounded(2)).assign(label=TOP), "label=label"),
        (columns(comma("{:.3f}", LOGS - 20)).assign(label=GOLD), "decimal="),
        (columns(4 * LOGS, "z_{}").assign(label=np.where(LABELS == 2, None, GOLD)), "z_A"),
        (pd.DataFrame({"p_class_0": HALF, "y": LABELS % 2}), "classes=0,1"),
        (pd.DataFrame({"answer": LABELS % 2, "score": HALF, "label": LABELS // 3}), "prediction"),
        (columns(np.vstack([VOTES[1:] * 10, [9, 3, 1, 0, 0]])).assign(label=GOLD), "row 119"),
        (columns().assign(old=TOP), "label=old"),
        (columns().assign(team=["?", *GOLD[1:]]), "'?'"),
        (columns(form="P_queue{}").assign(queue=["?", *GOLD[1:]]), "classes=A,B"),
        (columns().assign(gpt4=GOLD), "label=gpt4"),
        (columns(form="p_{}", classes=range(5)).assign(fold=LABELS[::-1]), "label=fold"),
        (columns(form="p_{}").assign(p_missing=0.0), "'p_missing'"),
        (columns().assign(cost=1e-4 * LABELS, label=LABELS), "'cost'"),
        (
            pd.DataFrame({"prob": np.dstack([HALF, 1 - HALF]).ravel(), "label": [0, 1] * 120}),
            "id=",
        ),
        (columns(classes=["NA", *"abcd"]).assign(label=np.array([None, *"abcd"])[LABELS]), "NA"),
        (columns().assign(label=TOP), "label=label"),
        (columns().assign(label=PROBS.argmax(axis=1)), "label=label"),
        (pd.concat([columns(form="a_{}"), columns(PROBS[::-1], "b_{}")], axis=1), "columns="),
        (pd.concat([columns(form="p_{}"), columns(LOGS, "log_{}")], axis=1), "columns="),
        (pd.DataFrame({"score": PROBS[:, 0], "label": GOLD}), "columns="),
        (columns().join(columns(PROBS[::-1], "corrected:{}")).assign(label=GOLD), "corrected:*"),
        (columns(classes=list("cdeab")).assign(label=(LABELS + 3) % 5), "labels=from-0"),
        (columns(np.sort(PROBS), "top_{}", "54321").assign(label=LABELS), "labels=from-0"),
        (columns()[:0], "no rows"),
        (columns()[np.roll(CLASSES, 1)].assign(label=LABELS), "classes=A,B"),
    ],
)
def test_what_can_be_read_in_two_ways_or_in_none_is_asked(frame: Any, says: str) -> None:
    refuses(TableError, read_table, frame, names=[says])


#: Labels of probabilities of the classes of a table, and what they are, or which answers they ask.
COLUMNS_OF_LABELS: list[tuple[list[str], list[Any], list[int] | str]] = [
    (["-1", "0", "1"], ["-1.0", "0.0", "", "1.0"], [0, 1, -1, 2]),
    (["-1", "0", "1"], [-1.0, 0.0, None, 1.0], [0, 1, -1, 2]),
    (["1", "2", "3"], ["1.0", "2.0", "2"], [0, 1, 1]),
    (["1.0", "2.50"], ["1", "2.5", "-1"], [0, 1, -1]),
    (["3", "1", "2"], [1, 2], [1, 2]),
    (["1", "2", "3"], [0, 1, 2], "labels=names or labels=from-0"),
    (["a", "b", "c"], [1, 2, 1], "labels=from-0 or labels=from-1"),
    (["a", "b"], [-1, 1, 1], "classes=-1,1"),
    (["a", "b", "c"], [-1, 0, 1], "labels=from-0"),
    (["5 stars", "3 stars", "1 star"], [1, 3], "labels=from-1 or labels=names"),
    (["1 star", "2 stars", "3 stars"], [1, 3, 2], [0, 2, 1]),
    (["Yes", "No"], [0, 1], "labels=from-0 or labels=names"),
    (["No", "Yes"], [0, 1], [0, 1]),
    (["0", "1"], [-1, 1, 1, 0], [-1, 1, 1, 0]),
    (["a", "b", "c"], ["LABEL_0", "LABEL_2"], [0, 2]),
    (["1", "0", "2"], ["LABEL_0", "LABEL_2"], [1, 2]),
    (["LABEL_1", "LABEL_0"], [0, 1, 1], [1, 0, 0]),
    (["Stra\u00dfe", "Cafe\u0301"], ["STRASSE", " caf\u00e9\u00a0"], [0, 1]),
    (["\u0130yi", "k\u00f6t\u00fc"], ["iyi", "KO\u0308TU\u0308"], [0, 1]),
    (["a", "A"], ["a", "\u0410"], "row 1"),
    (["0", "1"], [True, False], [1, 0]),
    (["a", "b"], [["a"], "b"], "row 0"),
]


@pytest.mark.parametrize(("classes", "told", "labels"), COLUMNS_OF_LABELS)
def test_a_column_of_labels_is_read_as_one(classes: Any, told: Any, labels: Any) -> None:
    probs = np.full((len(told), len(classes)), 1 / len(classes))
    frame = pd.DataFrame(probs, columns=classes).add_prefix("p:")
    rows = frame.assign(label=pd.Series(told, dtype=object))
    if isinstance(labels, str):
        refuses(TableError, read_table, rows, names=[*labels.split(" or "), "label"])
        refuses(TableError, fit_scheme, frame, told, names=["label"])
    else:
        found = [
            read_table(rows).labels,
            read_table(rows, label="label", classes=classes, columns=[*frame]).labels,
            checked_rows(frame, told, missing=True)[1],
        ]
        assert [each.tolist() for each in found] == [labels] * 3


def test_numbers_that_count_from_one() -> None:
    for frame in (columns(), pd.DataFrame(PROBS)):
        found = open_source(frame.assign(label=LABELS + 1))
        assert found.table.labels.tolist() == LABELS.tolist()
        assert "as positions from 1" in found.remark
    # Without the last class, they may count from 0.
    frame = columns().assign(label=np.minimum(LABELS, 3) + 1)
    for rows in (frame, frame[:5]):
        refuses(TableError, read_table, rows, names=["labels=from-0", "labels=from-1"])
        for start in (0, 1):
            assert read_table(rows, labels=f"from-{start}").labels.min() == 1 - start
    rows = columns()[LABELS > 0].assign(label=LABELS[LABELS > 0])
    assert read_table(rows).labels.min() == 1
    told = f"of {((PROBS.argmax(axis=1) == LABELS) & (LABELS > 0)).sum()} if counted from -1"
    refuses(TableError, read_table, columns().assign(label=LABELS - 1), names=[told])


@pytest.mark.parametrize(
    ("classes", "told"),
    [
        (["-1", "0", "1", "2", "3"], LABELS - 1),
        (["1", "2", "3", "4", "5"], np.minimum(LABELS, 3) + 1),
        (["4", "3", "2", "1", "0"], 4 - LABELS),
        (None, np.minimum(LABELS, 3) + 1),
        (None, LABELS - 1),
        ([f"{5 - k} stars" for k in range(5)], 5 - LABELS),
    ],
)
def test_numbers_beside_an_array_are_positions_unless_predictions_differ(
    classes: Any, told: Any
) -> None:
    refuses(TableError, fit_scheme, PROBS, told, classes=classes, names=["labels", "class names"])


def test_predictions_in_the_place_of_labels_are_noticed_in_python() -> None:
    settings = SelectionSettings(betas=(1.0,), folds=2)
    for fit in (partial(fit_scheme, settings=settings), DCSClassifier(settings=settings).fit):
        with pytest.warns(UserWarning, match="most probable class of every row"):
            fit(PROBS, PROBS.argmax(axis=1))


@pytest.mark.parametrize("name", ["pred_{}", "rating {}", "p_{}", "{}"])
def test_whole_numbers_are_votes_unless_they_may_be_something_else(name: str) -> None:
    votes = columns(VOTES, name).assign(label=GOLD)
    beside = votes
    for total in ("total", "sum"):
        beside = beside.assign(**{name.format(total): VOTES.sum(axis=1)})
        assert read_table(beside).digest == read_table(votes).digest
    doubled = columns(VOTES * np.repeat([[1], [2]], 60, axis=0), name).assign(label=GOLD)
    assert read_table(doubled).labelled.all()
    ranks = columns(PROBS.argsort(axis=1).argsort(axis=1) + 1, name).assign(label=GOLD)
    refuses(TableError, read_table, ranks, names=["ranks", "values=votes"])
    if name != "{}":
        grades = np.random.default_rng(0).integers(1, 6, (120, 5))
        rows = columns(grades, name, list("12345")).assign(label=LABELS + 1)
        refuses(TableError, read_table, rows, names=["answers", "values=votes", "run_1"])


def test_a_confidence_beside_the_predictions_is_no_class() -> None:
    table = read_table(columns().assign(predicted=TOP, confidence=PROBS.max(axis=1)))
    assert table.classes == tuple(columns()) and not table.labelled.any()


@pytest.mark.parametrize("total", [1.0, 100.0])
def test_rows_are_called_rounded_only_if_they_are(total: float) -> None:
    for decimals, said in ((9, False), (2, True)):
        rows = (total * columns()).round(decimals).assign(label=GOLD)
        assert ("rounded" in open_source(rows).remark) == said


def test_cells_are_no_names_of_columns(tmp_path: Path) -> None:
    for decimals in (2, 6):
        rows = columns(rounded(decimals)).assign(label=GOLD)
        path = csv_of(rows, tmp_path / "x", header=False)
        refuses(TableError, read_table, path, names=["column names"])
    counts = {"rank": np.arange(120) // 5 + 1, "step": np.arange(120) % 5 + 1}
    refuses(TableError, read_table, pd.DataFrame(counts).assign(label=GOLD), names=["columns="])


def test_a_rare_class_without_a_labelled_row_is_one() -> None:
    rare = PROBS * np.where(np.arange(5) == 3, 1e-3, 1.0)
    rows = columns(rare / rare.sum(axis=1, keepdims=True), "p_{}")
    gold = [CLASSES[k] if k != 3 else None for k in LABELS]
    for form in (rows, rows.set_axis(CLASSES, axis=1), np.log(rows)):
        assert read_table(form.assign(label=gold)).classes == tuple(CLASSES)
    called = rows.rename(columns={f"p_{CLASSES[3]}": "p_id"}).assign(label=gold)
    assert "id" in read_table(called).classes


def test_a_letter_is_the_same_however_it_is_encoded() -> None:
    frame = columns(classes=["caf\u00e9", *CLASSES[1:]])
    other = frame.rename(columns={"caf\u00e9": "cafe\u0301"})
    tables = [read_table(rows) for rows in (frame, other)]
    assert tables[0].digest == tables[1].digest
    old = ["cafe\u0301", *CLASSES[1:]]
    assert tables[0].with_classes(old).classes == tuple(old)
    assert read_table(other, columns=old, classes=old).digest == tables[0].digest


def test_the_index_of_a_frame_is_no_place_for_labels_to_get_lost() -> None:
    frame = columns(form="p:{}").assign(label=GOLD, id=[f"T{k}" for k in range(120)])
    levels = pd.MultiIndex.from_tuples([("p", name[2:]) for name in frame.columns[:5]])
    deep = frame.iloc[:, :5].set_axis(levels, axis=1)
    deep[("label", "")], deep[("id", "")] = frame["label"], frame["id"]
    for rows in (frame.set_index(["id", "label"]), frame.set_index("label"), deep):
        assert read_table(rows).labels.tolist() == LABELS.tolist()
    unnamed = frame.set_index(["id", "label"]).rename_axis([None, None])
    refuses(TableError, read_table, unnamed, names=["reset_index"])


def test_rows_are_matched_by_place_or_by_index_but_not_by_chance() -> None:
    frame, gold = columns(), pd.Series(GOLD)
    counts, other = (10 * frame).round(), pd.Series(LABELS)[::-1]
    refuses(TableError, ProbabilityTable.from_counts, counts, other, names=["index", "labels"])
    refuses(TableError, checked_rows, frame[1:90], gold[2:91], names=["index"])
    assert checked_rows(frame, gold[::-1].to_numpy()[::-1])[1].tolist() == LABELS.tolist()
    assert checked_rows(frame[:9], gold[5:14]) is not None
    hidden = np.ma.masked_less(PROBS, 0.1), np.ma.masked_equal(LABELS, 3)
    for arrays in ((hidden[0], LABELS), (PROBS, hidden[1])):
        refuses(TableError, checked_rows, *arrays, names=["masked"])


def test_doubts_about_labels_are_said_of_our_own_files_too(tmp_path: Path) -> None:
    path, table = tmp_path / "own.parquet", ProbabilityTable.from_arrays(PROBS, LABELS)
    table.write(path)
    assert open_source(path).remark == ""
    for labels, doubt in ((PROBS.argmin(axis=1), "by chance"), (LABELS * 0, "no row is labelled")):
        ProbabilityTable.from_arrays(PROBS, labels).write(path)
        assert doubt in open_source(path).remark


@pytest.mark.parametrize("prefix", ["", "p:"])
def test_columns_of_a_frame_are_matched_by_name_wherever_one_is_given(prefix: str) -> None:
    frame = columns()
    other = frame[frame.columns[::-1]].add_prefix(prefix)
    table = ProbabilityTable.from_arrays(frame.to_numpy(), LABELS, classes=CLASSES)
    for rows in (other, pa.Table.from_pandas(other)):
        for made in (
            ProbabilityTable.from_arrays(rows, LABELS, classes=CLASSES),
            ProbabilityTable.from_arrays(rows, LABELS[:] * 0).with_classes(CLASSES),
            table.with_probs(rows),
        ):
            assert np.array_equal(made.probs, table.probs)
    voted = ProbabilityTable.from_counts((10 * other).round(), LABELS, classes=CLASSES)
    meant = ProbabilityTable.from_counts((10 * frame).round().to_numpy(), None)
    assert np.array_equal(voted.probs, meant.probs)
    scheme = get_method("batch").fit(frame, LABELS)
    mean = mean_combination(2, 5)
    joint = CorrectionScheme.identity(CLASSES, combination=mean, inputs=("x", "y"))
    for use in ("correct", "apply", "predict"):
        assert np.array_equal(getattr(scheme, use)(other), getattr(scheme, use)(frame))
        both = getattr(joint, use)([other, frame]), getattr(joint, use)([frame.to_numpy()] * 2)
        assert np.array_equal(*both)
    refuses(TableError, scheme.apply, other.iloc[:, 1:], names=["columns"])
    refuses(TableError, scheme.apply, other.assign(label=GOLD), names=["columns", "label"])


def test_numbers_beside_columns_that_are_numbers_are_their_names() -> None:
    order, told = [2, 0, 1], np.minimum(LABELS, 2)
    for start in (0, 1):
        frame = pd.DataFrame({k + start: VOTES[:, k] for k in order})[::-1]
        labels = pd.Series(told + start)[frame.index]
        for rows, build in (
            (frame, ProbabilityTable.from_counts),
            (frame.div(frame.sum(axis=1), axis=0).fillna(1 / 3), ProbabilityTable.from_arrays),
        ):
            table = build(rows, labels)
            assert table.classes == tuple(str(k + start) for k in order)
            assert [order[k] for k in table.labels] == told[frame.index].tolist()


@pytest.mark.parametrize(("right", "asked"), [(420, False), (380, True)])
def test_another_order_is_doubted_if_predicted_twice_as_often(right: int, asked: bool) -> None:
    labels = np.repeat([0, 1, 2], 1000)
    shift = np.tile(np.repeat([0, 1, 2], [right, 500, 500 - right]), 3)
    predicted = np.eye(3)[(labels + shift) % 3]
    # Also if all rows are predicted as one class.
    for probs in (predicted, predicted / 10 + [0.2, 0.5, 0.3]):
        assert bool(in_other_order(labels, probs)) == asked
    assert "sorted" in in_other_order(labels, np.tile([0.2, 0.3, 0.5], (3000, 1)))


def test_labels_that_are_predicted_less_than_by_chance_are_a_warning() -> None:
    turned = [*CLASSES[1:], CLASSES[0]]
    gold = [CLASSES[(k + (row % 40 == 0)) % 5] for row, k in enumerate(PROBS.argmax(axis=1))]
    with pytest.warns(UserWarning, match="fewer than by chance"):
        fit_scheme(PROBS, gold, classes=turned)
    rows = columns(classes=turned, form="p:{}").assign(label=gold)
    assert "fewer than by chance" in open_source(rows).remark


def test_answers_of_a_text_under_any_names_of_columns() -> None:
    votes = np.array(CLASSES)[np.sort(RNG.integers(0, 5, (120, 4)))]
    rows = {"item": np.repeat(range(120), 4), "rater": [*"abcd"] * 120, "said": votes.ravel()}
    frame = pd.DataFrame(rows | {"gold": np.repeat(GOLD, 4)}).sample(frac=1, random_state=1)
    refuses(TableError, read_table, frame, names=["id=COLUMN"])
    for answer in ({}, {"columns": ["said"]}, {"classes": CLASSES}):
        table = read_table(frame, id="item", **answer).subset(range(120))
        assert table.n_rows == 120
        order = [int(each) for each in table.ids]
        counts = [[(row == name).sum() for name in table.classes] for row in votes[order]]
        meant = ProbabilityTable.from_counts(counts, table.labels, classes=table.classes)
        np.testing.assert_array_equal(table.probs, meant.probs)
        assert [table.classes[k] for k in table.labels] == [GOLD[k] for k in order]


def test_lists_in_another_order_in_each_row() -> None:
    orders = [RNG.permutation(5) for _ in range(120)]
    rows = {
        "options": [[CLASSES[k] for k in order] for order in orders],
        "shares": [row[order].tolist() for row, order in zip(PROBS, orders, strict=True)],
    }
    frames = [pd.DataFrame(rows), pd.DataFrame({"given": pd.DataFrame(rows).to_dict("records")})]
    for frame in frames:
        table = read_table(frame.assign(gold=GOLD)).with_classes(CLASSES)
        np.testing.assert_allclose(table.probs, PROBS)
        assert table.labels.tolist() == LABELS.tolist()
    tokens = [{"tokens": ["the", str(k)], "costs": [0.5, 0.5]} for k in range(120)]
    assert read_table(columns().assign(label=GOLD, said=tokens)).classes == tuple(CLASSES)


def test_a_question_is_answered() -> None:
    frame = columns(3.0 * PROBS, "x {}").assign(first=GOLD, second=GOLD[::-1], n=range(120))
    answers = {"columns": ["x *"], "values": "scores", "label": "second", "classes": CLASSES}
    table = read_table(frame, **answers)
    np.testing.assert_allclose(table.probs, PROBS)
    assert table.labels.tolist() == LABELS[::-1].tolist()
    stars = columns(form="{} stars", classes="54321").assign(label=5 - LABELS)
    assert read_table(stars, labels="names").labels.tolist() == LABELS.tolist()
    for key, value in (("label", "secnd"), ("columns", ["y *"]), ("id", "number")):
        refuses(DCSError, read_table, frame, **answers | {key: value}, names=[key])
    both = {"columns": CLASSES, "classes": CLASSES[::-1]}
    refuses(TableError, read_table, columns().assign(label=GOLD), **both, names=["orders"])
    refuses(ConfigError, read_table, frame, labels="n", names=["labels", "label"])
    refuses(ConfigError, read_table, frame, classes="no,yes", names=["classes"])


def test_labels_that_the_file_names_aside_or_by_row_are_not_matched_by_place(
    tmp_path: Path,
) -> None:
    keys = [f"T{k}" for k in range(120)]
    cells = {name: dict(zip(keys, column, strict=True)) for name, column in columns().items()}
    rows = zip(keys[::-1], GOLD[::-1], strict=True)
    (tmp_path / "x.json").write_text(json.dumps(cells | {"label": dict(rows)}))
    table = read_table(tmp_path / "x.json")
    assert table.labels.tolist() == LABELS.tolist() and list(table.ids) == keys
    named = pa.Table.from_pandas(columns().assign(label=4 - LABELS))
    told = {"label": {"names": CLASSES[::-1], "_type": "ClassLabel"}}
    text = json.dumps({"info": {"features": told}})
    pq.write_table(named.replace_schema_metadata({"huggingface": text}), tmp_path / "x.parquet")
    table = read_table(tmp_path / "x.parquet")
    assert table.labels.tolist() == LABELS.tolist()
    for found in (table, read_table(pa.Table.from_pandas(columns(form="p:{}")))):
        np.testing.assert_allclose(found.probs, PROBS)
    refuses(TableError, read_table, [{"label": 1}], names=["list"])


def test_very_many_columns_are_refused_at_once(tmp_path: Path) -> None:
    many = 25_000
    (tmp_path / "a.csv").write_text(",".join(f"c{k}" for k in range(many)) + "\n")
    (tmp_path / "a.jsonl").write_text(json.dumps(dict.fromkeys(map(str, range(many)), 0)))
    np.savez(tmp_path / "a.npz", probs=np.zeros((2, many)))
    for path in tmp_path.iterdir():
        refuses(TableError, read_table, path, names=["25,000 columns"])


def test_labels_of_the_next_file_count_as_those_of_the_first(tmp_path: Path) -> None:
    for start in (0, 1):
        first = open_source(columns().assign(label=LABELS + start))
        rows = columns()[:9].assign(label=np.minimum(LABELS[:9], 2) % 2 + 1 + start)
        if not start:
            refuses(TableError, open_source, rows, names=["labels=from-0", "labels=from-1"])
        for label in (rows["label"], np.array(CLASSES)[rows["label"] - start]):
            table = open_source(rows.assign(label=label), known=first.reading).table
            assert table.labels.tolist() == (rows["label"] - start).tolist()
        few = columns()[LABELS > 1].assign(label=LABELS[LABELS > 1] - 1 + start)
        refuses(TableError, open_source, few[:90], known=first.reading, names=["labels="])


def test_predictions_in_the_next_file_are_no_labels_beside_these() -> None:
    known = open_source(columns().assign(label=GOLD)).reading
    for beside in ({}, {"gold": GOLD}, {"gold": LABELS}):
        table = open_source(columns().assign(label=TOP, **beside), known=known).table
        assert (table.labels.tolist() == LABELS.tolist()) == bool(beside)
        table = open_source(columns().assign(answer=TOP, **beside), known=known).table
        assert table.labels.tolist() == (LABELS.tolist() if beside else [-1] * 120)
    for cells in (TEXTS, np.linspace(0.1, 0.9, 120)):
        assert not open_source(columns().assign(y=cells), known=known).table.labelled.any()
    refuses(TableError, open_source, columns().assign(label="Biling"), known=known, names=["row"])
    unlabelled = open_source(columns()).reading
    assert not open_source(columns(), known=unlabelled).table.labelled.any()
    both = columns().assign(answer=GOLD[::-1], gold=GOLD)
    refuses(TableError, open_source, both, known=known, names=["label=COLUMN"])


NEXT: list[tuple[Any, Any, Any]] = [
    ("logits", LOGS + 1.0, [[3, 1, 2, 0, 0], [7, 6, 5, 4, 1]]),
    ("scores", 3.0 * PROBS, [[3, 1, 2, 0, 0], [7, 6, 5, 4, 1]]),
    ("votes", VOTES, [[1, 0, 0, 0, 0]]),
    ("log2", np.log2(PROBS), [[-1, -1, -9, -9, -9]]),
]


@pytest.mark.parametrize(("kind", "first", "rows"), NEXT)
def test_numbers_of_the_next_file_are_of_the_kind_of_the_first(
    kind: Any, first: Any, rows: Any
) -> None:
    known = open_source(columns(first).assign(label=GOLD), Reading(values=kind)).reading
    frame = columns(rows)
    table = open_source(frame, known=known).table
    assert table.digest == read_table(frame, values=kind, columns=CLASSES).digest
    if kind == "logits":
        np.testing.assert_allclose(open_source(columns(), known=known).table.probs, PROBS)


def test_the_next_file_can_have_decimal_commas_or_arrays_in_their_own_order(
    tmp_path: Path,
) -> None:
    known = open_source(csv_of(columns().assign(label=GOLD), tmp_path / "x")).reading
    commas = csv_of(columns(comma("{:.6f}")), tmp_path / "z", ";")
    np.testing.assert_allclose(open_source(commas, known=known).table.probs, PROBS, atol=1e-5)
    arrays = {"probs": PROBS[::-1, ::-1], "labels": 4 - LABELS[::-1], "classes": CLASSES[::-1]}
    np.savez(tmp_path / "y.npz", **arrays)
    table = open_source(tmp_path / "y.npz", known=known).table.with_classes(CLASSES)
    assert table.labels.tolist() == LABELS[::-1].tolist()
    np.testing.assert_allclose(table.probs, PROBS[::-1])


def test_a_table_that_was_written_is_read_as_it_is(tmp_path: Path) -> None:
    path, turned = tmp_path / "x.parquet", tuple(CLASSES[::-1])
    read_table(columns().assign(label=GOLD)).write(path)
    table = read_table(path, classes=turned)
    assert table.classes == turned and table.labels.tolist() == (4 - LABELS).tolist()
    refuses(TableError, read_table, path, label="gold", names=["label"])


def test_several_columns_of_each_class_are_asked_about_whatever_tells_the_classes() -> None:
    known = open_source(columns(form="x {}").assign(label=GOLD)).reading
    texts = columns([CLASSES] * 120, "text_{}", "01234")
    people = columns(PROBS[::-1], "human_{}", "abcde").join(columns(LOGS, "logit_{}", "abcde"))
    lists = columns().assign(bert=[[{"label": n, "score": 0.2} for n in CLASSES]] * 120)
    sexes = pd.DataFrame({"sex_a": LABELS % 2, "sex_b": 1 - LABELS % 2, "p_won": HALF})
    for rows in (people, lists, sexes):
        refuses(TableError, read_table, rows.assign(label=LABELS), names=["class probabilities"])
    for first, names in (("a_{}", CLASSES), ("a_{}", range(5)), ("{}", CLASSES)):
        for values in (PROBS, LOGS + 3.0):
            frame = columns(values, first, names)
            both = frame.join(columns(values[::-1], "b_{}", names)).join(texts)
            refuses(TableError, read_table, both, classes=CLASSES, names=["columns="])
            refuses(TableError, open_source, both, known=known, names=["columns="])
            if names is CLASSES:
                table = open_source(texts.join(frame), known=known).table
                np.testing.assert_allclose(table.probs, PROBS)
            else:
                # The earlier columns were in the order of their names, not in that of numbers.
                alone = texts.join(frame)
                refuses(TableError, open_source, alone, known=known, names=["classes="])
    corrected = columns(PROBS[::-1], "corrected:{}").join(columns())
    found = open_source(corrected, Reading(classes=tuple(CLASSES)))
    assert found.reading.columns == tuple(CLASSES)


def test_a_class_can_be_called_as_the_column_of_labels() -> None:
    names = ["label", *CLASSES[1:]]
    frame = columns(form="p_{}", classes=names).assign(label=[names[k] for k in LABELS])
    for given in ({}, {"classes": names}):
        assert read_table(frame, **given).labels.tolist() == LABELS.tolist()


def test_names_with_the_same_number_keep_their_order() -> None:
    frame = pd.DataFrame({"p1": [0.9, 0.2], "p01": [0.1, 0.8], "label": [0, 1]})
    assert read_table(frame, columns=("p*",)).classes == ("p1", "p01")


def test_rows_need_not_sum_to_one_and_are_not_copied() -> None:
    probs = np.array([[0.25, 0.25], [1.0 + 1e-7, 0.0]])
    values, labels, classes = checked_rows(probs, [0, 1])
    assert values is probs
    assert labels.tolist() == [0, 1]
    assert classes == ("class_0", "class_1")
    refuses(TableError, checked_rows, [[0.5, 1.1]], [0])


def _write(path: Path, ids: list[str], share: float) -> Path:
    rows = {"p:a": share, "p:b": 1.0 - share, "label": ["a", "b", "a"], "id": ids}
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("shared", [["x", "y", "z"], ["1", "2", "90"], ["7", "8", "9"]])
def test_shared_ids_are_refused_unless_they_number_the_rows(
    shared: list[str], tmp_path: Path
) -> None:
    fitted = _write(tmp_path / "a.csv", shared, 0.2)
    test = _write(tmp_path / "b.csv", ["u", "v", shared[2]], 0.7)
    refuses(TableError, open_sources, fitted, test=test, names=["b.csv", "1 of 3 ids"])
    numbered = [_write(tmp_path / f"{k}.csv", ["1", "2", "3"], k / 10) for k in (2, 7)]
    assert [*open_sources(numbered[0], test=numbered[1])] == ["optimization", "test"]


def test_test_rows_that_are_fitted_are_known_by_their_probabilities(tmp_path: Path) -> None:
    # Names are no texts.
    told = {"label": GOLD, "team": [f"team {k:x}" for k in range(120)]}
    frame = columns().assign(**told)
    parts = [csv_of(rows, tmp_path / name) for name, rows in (("x", frame), ("y", frame[90:]))]
    refuses(TableError, open_sources, parts[0], test=parts[1], names=["30 of 30 rows", "y.csv"])
    # One row in a hundred is chance.
    other = columns(np.random.default_rng(0).dirichlet(np.ones(5), 120)).assign(**told)
    mixed = [csv_of(pd.concat([frame[:k], other[k:]]), tmp_path / f"z{k}") for k in (1, 2)]
    assert open_sources(parts[0], test=mixed[0])
    refuses(TableError, open_sources, parts[0], test=mixed[1], names=["2 of 120 rows"])
    texts = [frame.assign(text=TEXTS), columns(rounded(3)).assign(said=[t.upper() for t in TEXTS])]
    parts = [csv_of(rows.assign(label=GOLD), tmp_path / f"{k}") for k, rows in enumerate(texts)]
    refuses(TableError, open_sources, parts[0], test=parts[1], names=["120 of 120 texts"])


def test_rows_of_a_text_under_several_prompts_stay_together() -> None:
    frames = [columns(np.roll(PROBS, k, axis=1)).assign(label=GOLD) for k in range(3)]
    rows = pd.concat(frames, ignore_index=True)
    for cells in (TEXTS, [*range(120)]):
        assert read_table(rows.assign(sample=cells * 3, n=1)).repeated == 240
        assert read_table(rows.assign(sample=cells * 3, label=GOLD * 2 + GOLD[::-1])).repeated == 0


def test_tables_of_the_same_rows_in_other_orders() -> None:
    frame = columns().assign(text=TEXTS)
    texts = [texts_by_id(open_source(rows)) for rows in (frame, frame[::-1], frame[5:])]
    refuse_other_texts({"x": texts[0], "y": texts[0]})
    for other in texts[1:]:
        refuses(TableError, refuse_other_texts, {"x": texts[0], "y": other}, names=["y", "row"])
    # Ids that are no names of rows, as one is empty.
    frame = columns().assign(id=[None, *range(119)])
    texts = [texts_by_id(open_source(rows)) for rows in (frame, frame[::-1])]
    refuses(TableError, refuse_other_texts, {"x": texts[0], "y": texts[1]}, names=["y", "id"])


def test_one_shared_text_in_a_hundred_is_chance() -> None:
    test = [f"text {k}" for k in range(100)]
    assert refuse_shared_texts(test[:1], test, "t") != ""
    assert refuse_shared_texts(["another"], test, "t") == ""
    refuses(TableError, refuse_shared_texts, test[:2], test, "t", names=["2 of 100 texts"])
