"""Simulate the guarantee of the default rule, and the levels of tests and intervals.

No real data are used. All parts append to CSV files, resume from them, and print Markdown::

    python -m benchmarks.calibration guarantee FOLDER --number 200
    python -m benchmarks.calibration texts FOLDER --number 100
    python -m benchmarks.calibration intervals FOLDER --number 500
    python -m benchmarks.calibration accuracy FOLDER --number 500
    python -m benchmarks.calibration copies FOLDER --number 500

*Guarantee*: the default is fitted in simulated worlds of 2 to 30 classes and 60 to 5,000 rows, and
judged on 40,000 fresh rows. In *calibrated* worlds the probabilities are Bayes-optimal posteriors,
so that no correction can gain accuracy; in others the log-probabilities are shifted by class or
tempered, labels are noisy, classes rare, or rows repeated. *Texts*: the same in worlds whose texts
are there one to four times, with other probabilities, and known as groups. *Intervals*: two sets
of predictions of the same true COBias are drawn again and again; the p-value of their difference
should be below 5 % in 5 % of the draws, and the 95 % intervals should contain the true values in
95 %. *Accuracy*: the same for the difference of paired accuracies, of which only the rows that
change matter. *Copies*: half of the rows are drawn once and the others two to five times, with
equal predictions; class accuracies are equal, or spread.
"""

from __future__ import annotations

import argparse
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import beta

import dcs
from dcs.evaluation.metrics import ClassificationMetrics, confusion_matrix, mean_distance
from dcs.evaluation.uncertainty import (
    Interval,
    accuracy_difference,
    compare_predictions,
    design_effect,
    metric_intervals,
)

FRESH_ROWS: Final = 40_000

#: Class accuracies of N classes. The second predictions have the same ones, lowered by `DROPS`:
#: the same COBias, with more noise.
SHAPES: Final[dict[str, Callable[[int], NDArray[np.float64]]]] = {
    "equal, 99 and 50 %": lambda n: np.full(n, 0.99),
    "equal, 90 and 60 %": lambda n: np.full(n, 0.9),
    "close": lambda n: np.linspace(0.86, 0.94, n),
    "one weak class": lambda n: np.r_[0.6, np.full(n - 1, 0.9)],
    "spread": lambda n: np.linspace(0.6, 0.98, n),
}
DROPS: Final = (0.49, 0.3, 0.3, 0.3, 0.3)
CLASSES: Final = (2, 4, 14, 20, 30)
ROWS: Final = (200, 1000, 3000)

#: Shares of rows that only the second or only the first predictions have right; numbers of rows.
CHANGES: Final = ((0.0, 0.02), (0.01, 0.01), (0.02, 0.05), (0.1, 0.1), (0.2, 0.05), (0.25, 0.25))
CHANGED_ROWS: Final = (60, 150, 400, 1000, 3000)

#: Numbers of different rows, each of which is there once to five times.
DIFFERENT_ROWS: Final = (100, 300, 1000)
COPIES: Final = (1, 1, 1, 2, 3, 5)
#: The lowest class accuracy; the highest is 90 %.
LOWEST: Final = (0.9, 0.4)

#: Draws of one setting are computed, and saved, in blocks of this size.
BLOCK: Final = 25


#: Kinds of worlds, one after the other. The rows of the last two are repeated.
KINDS: Final = ("calibrated", "shifted", "tempered", "noisy", "rare", "copies", "shifted copies")

#: Kinds of worlds of texts that are repeated, and the noise of each repetition.
TEXTS: Final = ("copies of texts", "shifted copies of texts")
_WORDING: Final = 0.3


def world(
    number: int, kinds: tuple[str, ...] = KINDS
) -> tuple[str, Iterator[tuple[NDArray[np.float64], ...]]]:
    """Return the kind of a world, and an iterator over fitted and fresh rows with their groups."""
    rng = np.random.default_rng([29, number])
    kind = kinds[number % len(kinds)]
    n_classes = int(rng.choice([2, 3, 4, 5, 8, 14, 20, 30]))
    n_rows = round(float(np.exp(rng.uniform(np.log(60), np.log(5000)))))
    concentration = 0.5 if kind == "rare" else float(rng.choice([2.0, 50.0]))
    prior = rng.dirichlet(np.full(n_classes, concentration)) + 0.002
    prior /= prior.sum()
    means = rng.normal(0.0, rng.uniform(0.6, 1.6), (n_classes, min(n_classes, 8)))
    shift = rng.normal(0.0, 1.5, n_classes) * ("shifted" in kind)
    temper = float(rng.choice([0.3, 3.0])) if kind == "tempered" else 1.0
    noise = float(rng.uniform(0.05, 0.3)) if kind == "noisy" else 0.0

    def draw() -> Iterator[tuple[NDArray[np.float64], ...]]:
        for size in (n_rows, FRESH_ROWS):
            labels = rng.choice(n_classes, size, p=prior)
            x = means[labels] + rng.normal(size=(size, means.shape[1]))
            groups = np.arange(size)
            if "texts" in kind and size == n_rows:
                groups = np.repeat(groups, rng.integers(1, 5, size))[:size]
                labels, x = labels[groups], x[groups] + rng.normal(0.0, _WORDING, x.shape)
            logs = x @ means.T - 0.5 * (means**2).sum(axis=1) + np.log(prior) + shift
            weights = np.exp(temper * (logs - logs.max(axis=1, keepdims=True)))
            probs = weights / weights.sum(axis=1, keepdims=True)
            wrong = rng.random(size) < noise
            labels = np.where(wrong, rng.integers(0, n_classes, size), labels)
            if kind.endswith("copies") and size == n_rows:
                # The first rows, each one to four times.
                rows = np.repeat(np.arange(size), rng.integers(1, 5, size))[:size]
                probs, labels = probs[rows], labels[rows]
            yield probs, labels, groups

    return kind, draw()


def fit_world(number: int, kinds: tuple[str, ...] = KINDS) -> list[dict[str, Any]]:
    """Fit the default on one world; return the changes on fresh rows of each rule, in points."""
    kind, draw = world(number, kinds)
    (probs, labels, groups), (fresh, truth, _) = draw
    n_rows, n_classes = probs.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Classes without rows.
        found = dcs.fit_scheme(probs, labels, groups=groups)
    before = ClassificationMetrics.from_predictions(truth, fresh.argmax(axis=1), n_classes)
    about = {"number": number, "kind": kind, "rows": n_rows, "classes": n_classes}
    rows = []
    fixed = found.pick(dcs.Preference(margin=0.5))
    balance = found.pick(dcs.Preference("balance"))
    for rule, fitted in (("default", found), ("margin 0.5", fixed), ("balance", balance)):
        point = fitted.chosen
        predicted = point.scheme.predict(fresh)
        after = ClassificationMetrics.from_predictions(truth, predicted, n_classes)
        rows.append(
            about
            | {
                "rule": rule,
                "unchanged": point is found.plain,
                "way": point.path is not None,
                "margin": fitted.preference.margin_of(point, found.plain),
                "accuracy": 100.0 * (after.accuracy - before.accuracy),
                "cobias": 100.0 * (after.cobias - before.cobias),
                "estimate": 100.0 * point.change.accuracy,
                "error": 100.0 * point.change.accuracy_error,
            }
        )
    return rows


def guarantee_table(frame: pd.DataFrame) -> str:
    """Return the losses of each rule in each kind of world, against its own claim."""
    frame = frame.assign(broken=frame["accuracy"] < -frame["margin"])
    lines = [
        "| rule | worlds | accuracy | COBias | claim broken | largest loss | unchanged |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (rule, kind), own in frame.groupby(["rule", "kind"], sort=False):
        lines.append(
            f"| {rule} | {len(own)} {kind} | {own['accuracy'].mean():+.2f} "
            f"| {own['cobias'].mean():+.2f} | {own['broken'].sum()} "
            f"| {max(0.0, -own['accuracy'].min()):.2f} | {own['unchanged'].sum()} |"
        )
    for rule, everything in frame.groupby("rule", sort=False):
        regular = everything[~everything["kind"].str.contains("copies")]
        for name, own in (("all", everything), ("regular", regular)):
            if own.empty:
                continue
            count, number = int(own["broken"].sum()), len(own)
            low, high = _exact(count, number)
            ratio = ((own["estimate"] - own["accuracy"]) / own["error"])[own["error"] > 0.0]
            lines.append(
                f"\n{rule}: claim broken in {count} of {number} {name} worlds, "
                f"{100 * count / number:.1f} % (exact 95 % interval {low:.1f} to {high:.1f} %); "
                f"unchanged in {own['unchanged'].mean():.0%}; error of the estimate over its "
                f"standard error {math.sqrt((ratio**2).mean()):.2f}"
            )
    gains = frame[frame["kind"] == "shifted"].groupby("rule")["cobias"].sum()
    if len(gains):
        lines.append(f"\nShare of the gain in COBias: {gains['default'] / gains['balance']:.0%}")
    return "\n".join(lines)


def _exact(count: int, number: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a share, in per cent."""
    low = beta.ppf(0.025, count, number - count + 1) if count else 0.0
    high = beta.ppf(0.975, count + 1, number - count) if count < number else 1.0
    return 100.0 * float(low), 100.0 * float(high)


def draw_intervals(number: int) -> list[dict[str, Any]]:
    """Draw the predictions of one setting `BLOCK` times; count rejections and misses."""
    settings = list(itertools.product(range(len(SHAPES)), CLASSES, ROWS))
    shape, n_classes, n_rows = settings[number % len(settings)]
    rng = np.random.default_rng([31, number])
    name = list(SHAPES)[shape]
    truth = [SHAPES[name](n_classes)]
    truth.append(truth[0] - DROPS[shape])
    cobias = float(mean_distance(truth[0]))
    counts = dict.fromkeys(("rejected", "difference", "cobias", "weakest", "accuracy"), 0)
    for _ in range(BLOCK):
        labels = rng.integers(0, n_classes, n_rows)
        # One uniform number per row for both: what the better one has wrong, the other has too.
        luck = rng.random(n_rows)
        predicted = [np.where(luck < p[labels], labels, (labels + 1) % n_classes) for p in truth]
        compared = compare_predictions(labels, *predicted, n_classes)
        counts["rejected"] += compared["cobias"].p < 0.05
        counts["difference"] += _contains(compared["cobias"], 0.0)
        for p, one in zip(truth, predicted, strict=True):
            found = metric_intervals(confusion_matrix(labels, one, n_classes), resamples=400)
            counts["cobias"] += _contains(found.metrics["cobias"], cobias)
            counts["weakest"] += _contains(found.metrics["weakest_class"], float(p.min()))
            counts["accuracy"] += _contains(found.metrics["accuracy"], float(p.mean()))
    about = {"number": number, "shape": name, "classes": n_classes, "rows": n_rows, "draws": BLOCK}
    return [about | counts]


def _contains(interval: Interval, value: float) -> int:
    return int(interval.low - 1e-9 <= value <= interval.high + 1e-9)


def draw_accuracies(number: int) -> list[dict[str, Any]]:
    """Draw the changes of one setting `BLOCK` times; count intervals with the true difference."""
    settings = list(itertools.product(CHANGES, CHANGED_ROWS))
    (gained, lost), n_rows = settings[number % len(settings)]
    rng = np.random.default_rng([37, number])
    drawn = rng.multinomial(n_rows, (gained, lost, 1.0 - gained - lost), BLOCK)
    covered = 0
    for more, less, _ in drawn.tolist():
        low, high = accuracy_difference(more, less, n_rows)
        covered += low - 1e-9 <= gained - lost <= high + 1e-9
    about = {"number": number, "gained": gained, "lost": lost, "rows": n_rows}
    return [about | {"draws": BLOCK, "covered": covered}]


def draw_copies(number: int) -> list[dict[str, Any]]:
    """Draw rows with copies `BLOCK` times; count intervals that cover, told of them or not."""
    settings = list(itertools.product((2, 4, 14), DIFFERENT_ROWS, LOWEST))
    n_classes, n_rows, lowest = settings[number % len(settings)]
    rng = np.random.default_rng([41, number])
    before = np.linspace(0.9, lowest, n_classes)
    # A fifth of the predictions are made again, with the same accuracy for all classes.
    after = 0.8 * before + 0.2 * 0.7
    truth = {
        "accuracy": after.mean(),
        "COBias": mean_distance(after),
        "weakest class": after.min(),
        "change of accuracy": after.mean() - before.mean(),
        "change of COBias": float(mean_distance(after)) - float(mean_distance(before)),
    }
    rows = {known: dict.fromkeys(truth, 0) for known in (True, False)}
    for _ in range(BLOCK):
        groups = np.repeat(np.arange(n_rows), rng.choice(COPIES, n_rows))
        labels = rng.integers(0, n_classes, n_rows)
        right = rng.random(n_rows) < before[labels]
        anew = rng.random(n_rows) < 0.2
        both = (right, np.where(anew, rng.random(n_rows) < 0.7, right))
        one, two = (np.where(each, labels, (labels + 1) % n_classes)[groups] for each in both)
        true = labels[groups]
        for known, counts in rows.items():
            own = groups if known else np.arange(groups.size)
            found = metric_intervals(
                confusion_matrix(true, two, n_classes), resamples=400, effect=design_effect(own)
            )
            compared = compare_predictions(true, one, two, n_classes, groups=own)
            intervals = [found.metrics[name] for name in ("accuracy", "cobias", "weakest_class")]
            intervals += [*compared.values()]
            for (name, value), interval in zip(truth.items(), intervals, strict=True):
                counts[name] += _contains(interval, float(value))
    about = {"number": number, "classes": n_classes, "rows": n_rows, "lowest": lowest}
    about |= {"draws": BLOCK}
    return [about | {"known": known} | counts for known, counts in rows.items()]


def copies_table(frame: pd.DataFrame) -> str:
    """Return the coverage of the intervals by numbers of different rows, and without groups."""
    names = list(frame.columns[frame.columns.get_loc("known") + 1 :])
    lines = ["| different rows | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    known = frame[frame["known"]]
    parts = [(f"{rows:,}", own) for rows, own in known.groupby("rows")]
    parts += [(f"90 to {100 * low:g} %", own) for low, own in known.groupby("lowest")]
    for name, own in [
        *parts,
        ("all", known),
        ("all, taken as independent", frame[~frame["known"]]),
    ]:
        shares = 100.0 * own[names].sum() / own["draws"].sum()
        lines.append(f"| {name} | " + " | ".join(f"{share:.1f}" for share in shares) + " |")
    lines.append(f"\n{known['draws'].sum():,} draws")
    return "\n".join(lines)


def accuracies_table(frame: pd.DataFrame) -> str:
    """Return the coverage of the interval of accuracy differences, by changes and rows."""
    lines = ["| changes | " + " | ".join(f"{rows:,} rows" for rows in CHANGED_ROWS) + " | all |"]
    lines.append("| --- |" + " ---: |" * (len(CHANGED_ROWS) + 1))
    for gained, lost in CHANGES:
        own = frame[(frame["gained"] == gained) & (frame["lost"] == lost)]
        sums = own.groupby("rows")[["covered", "draws"]].sum()
        shares = [*(sums["covered"] / sums["draws"]), own["covered"].sum() / own["draws"].sum()]
        name = f"+{100 * gained:g} %, -{100 * lost:g} %"
        lines.append(f"| {name} | " + " | ".join(f"{100 * s:.1f}" for s in shares) + " |")
    total = 100 * frame["covered"].sum() / frame["draws"].sum()
    lines.append(f"\n{frame['draws'].sum():,} draws, covered {total:.1f} %")
    return "\n".join(lines)


def intervals_table(frame: pd.DataFrame) -> str:
    """Return the level of the test and the coverage of the intervals, by part of the setting."""
    lines = [
        "| settings | draws | p < 0.05 | COBias difference | COBias | weakest class | accuracy |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    parts = [(str(name), own) for name, own in frame.groupby("shape", sort=False)]
    parts += [(f"N = {number}", own) for number, own in frame.groupby("classes")]
    parts += [(f"n = {number:,}", own) for number, own in frame.groupby("rows")]
    for name, own in [*parts, ("all", frame)]:
        draws = int(own["draws"].sum())
        # All intervals but that of the difference are of both predictions of a draw.
        shares = [100.0 * own[each].sum() / draws for each in ("rejected", "difference")]
        shares += [50.0 * own[each].sum() / draws for each in ("cobias", "weakest", "accuracy")]
        figures = " | ".join(f"{share:.1f}" for share in shares)
        lines.append(f"| {name} | {draws:,} | {figures} |")
    settings = frame.groupby(["shape", "classes", "rows"])[["draws", "rejected"]].sum()
    high = settings[settings["rejected"] > 0.07 * settings["draws"]]
    lines.append(
        f"\n{len(settings)} settings of {settings['draws'].min()} to {settings['draws'].max()} "
        f"draws; p < 0.05 in more than 7 % of the draws of {len(high)}"
    )
    for index, row in high.iterrows():
        shape, n_classes, n_rows = index
        lines.append(
            f"- {shape}, N = {n_classes}, n = {n_rows:,}: {row['rejected']} of {row['draws']}"
        )
    return "\n".join(lines)


#: What a part computes for each number, its table, and its number of settings, if these are drawn.
PARTS: Final[dict[str, tuple[Any, Callable[[pd.DataFrame], str], int]]] = {
    "guarantee": (fit_world, guarantee_table, 0),
    "texts": (partial(fit_world, kinds=TEXTS), guarantee_table, 0),
    "intervals": (draw_intervals, intervals_table, len(SHAPES) * len(CLASSES) * len(ROWS)),
    "accuracy": (draw_accuracies, accuracies_table, len(CHANGES) * len(CHANGED_ROWS)),
    "copies": (draw_copies, copies_table, 3 * len(DIFFERENT_ROWS) * len(LOWEST)),
}


def main() -> None:
    """Simulate what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("folder", type=Path, help="folder of the CSV files, which are continued")
    parser.add_argument("--number", type=int, required=True, help="worlds, or draws per setting")
    parser.add_argument("--first", type=int, default=0, help="number of the first world")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    file = options.folder / f"{options.part}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    known = set(pd.read_csv(file)["number"]) if file.exists() else set()
    number = options.number
    compute, table, settings = PARTS[options.part]
    if settings:
        number = settings * math.ceil(number / BLOCK)
    missing = [i for i in range(options.first, options.first + number) if i not in known]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for rows in pool.map(compute, missing):
            pd.DataFrame(rows).to_csv(file, mode="a", header=not file.exists(), index=False)
    print(table(pd.read_csv(file)))


if __name__ == "__main__":
    main()
