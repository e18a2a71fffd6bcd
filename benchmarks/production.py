"""Simulate `dcs check` and `dcs shares`: false alarms, power, coverage and width of intervals.

No real data are used; prints Markdown::

    python -m benchmarks.production --number 400

*Check*: a model of about 85 % accuracy, biased towards some classes, is fitted on rows, and a
batch of 500 new rows is compared with them: without a change; with the share of every class
multiplied by 4/3 or 2/3 in turn and normalised ("a third"); and with logits divided by a
temperature of 1.5.

*Shares*: the errors of 2,000 and 20,000 unlabelled rows are those of the held-out rows; the shares
are new for the method ``adjusted``, and the same for ``sample``. The width of the 95 % intervals
is divided by that of counting the labels of as many rows as were held out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dcs.evaluation.drift import compare_rows, describe_rows
from dcs.evaluation.quantification import class_shares

BATCH: Final = 500
CLASSES: Final = (2, 4, 10)
FITTED: Final = (300, 1000)
ACCURACIES: Final = (0.5, 0.8, 0.9)
UNLABELLED: Final = (2000, 20_000)
#: Method, and concentration of the Dirichlet distribution of shares; below 1, classes may be rare.
SETTINGS: Final = (("adjusted", 5.0), ("sample", 5.0), ("sample", 0.7))

#: Logit of the true class that gives about 85 % accuracy.
SIGNAL: Final = {2: 1.5, 4: 2.2, 10: 2.9}


def rows(
    rng: np.random.Generator, n: int, shares: NDArray[np.float64], temperature: float = 1.0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return class probabilities of a biased model, and predictions without its bias."""
    labels = rng.choice(shares.size, n, p=shares)
    logits = rng.normal(size=(n, shares.size))
    logits[np.arange(n), labels] += SIGNAL[shares.size]
    biased = np.exp((logits + np.linspace(-1.0, 1.0, shares.size)) / temperature)
    return biased / biased.sum(axis=1, keepdims=True), logits.argmax(axis=1)


def alarms(number: int) -> Iterator[str]:
    """Yield the share of batches with an alarm, by kind of change, as rows of a table."""
    yield "| classes | fitted rows | no change | shares by a third | temperature 1.5 |"
    yield "| ---: | ---: | ---: | ---: | ---: |"
    for n_classes in CLASSES:
        base = np.linspace(1.0, 2.0, n_classes) / np.linspace(1.0, 2.0, n_classes).sum()
        third = base * np.where(np.arange(n_classes) % 2, 2 / 3, 4 / 3)
        changes = ((base, 1.0), (third / third.sum(), 1.0), (base, 1.5))
        for n in FITTED:
            found = np.zeros(len(changes))
            for draw in range(number):
                rng = np.random.default_rng([draw, n, n_classes])
                reference = describe_rows(*rows(rng, n, base))
                ps = [compare_rows(reference, *rows(rng, BATCH, *each)).p for each in changes]
                found += np.array(ps) <= 0.05
            figures = " | ".join(f"{100 * share:.1f} %" for share in found / number)
            yield f"| {n_classes} | {n} | {figures} |"


def intervals(number: int, method: str, concentration: float) -> Iterator[str]:
    """Yield coverage and relative width of the intervals of shares, as rows of a table."""
    yield f"method {method}, concentration {concentration}"
    yield ""
    yield "| classes | accuracy | held out | unlabelled | coverage | width: counting labels is 1 |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: |"
    for n_classes in CLASSES:
        for accuracy in ACCURACIES:
            errors = np.full((n_classes, n_classes), (1.0 - accuracy) / (n_classes - 1))
            np.fill_diagonal(errors, accuracy)
            for n, m in ((n, m) for n in FITTED for m in UNLABELLED):
                covered, widths = [], []
                for draw in range(number):
                    rng = np.random.default_rng([draw, n, m, n_classes])
                    truth = rng.dirichlet(np.full(n_classes, concentration))
                    held = rng.multinomial(n, truth)
                    if method == "adjusted":  # every class must have a row
                        even = np.full(n_classes, 1 / n_classes)
                        held = rng.multinomial(n - n_classes, even) + 1
                    confusion = [
                        rng.multinomial(k, own) for k, own in zip(held, errors, strict=True)
                    ]
                    counts = rng.multinomial(m, truth @ errors)
                    names = [str(k) for k in range(n_classes)]
                    found = class_shares(confusion, counts, classes=names, method=method)
                    for each, share in zip(found, truth, strict=True):
                        covered.append(each.low <= share <= each.high)
                        counting = 2 * 1.96 * np.sqrt(share * (1.0 - share) / n)
                        widths.append((each.high - each.low) / counting)
                yield (
                    f"| {n_classes} | {100 * accuracy:.0f} % | {n} | {m} | "
                    f"{100 * np.mean(covered):.1f} % | {np.median(widths):.2f} |"
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--number", type=int, default=400, help="draws of each setting")
    options = parser.parse_args()
    shares = chain.from_iterable(["", *intervals(options.number, *each)] for each in SETTINGS)
    for line in chain(alarms(options.number), shares):
        print(line, flush=True)
