"""Figures of the published implementation, for the tests that compare with it.

The corrections are numbered as published: 19 memberships, then the weights 1/30 .. 30/30.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dcs.evaluation.metrics import Objective

_PATH = Path(__file__).parent / "data" / "published_figures.npz"


@dataclass(frozen=True)
class Case:
    """One solution judged by the published code."""

    probs: NDArray[np.float64]
    labels: NDArray[np.int64]
    choice: NDArray[np.int64]
    predictions: NDArray[np.int64]
    objective: Objective
    z: float

    @property
    def n_classes(self) -> int:
        return self.probs.shape[1]


def load_cases() -> list[Case]:
    cases = []
    with np.load(_PATH) as figures:
        for i, table in enumerate(figures["table"]):
            error_weight, beta, tau, pseudo_count = (float(v) for v in figures["abtk"][i])
            labels = figures[f"labels{table}"].astype(np.int64)
            cases.append(
                Case(
                    probs=figures[f"probs{table}"],
                    labels=labels,
                    choice=figures[f"choice{i}"].astype(np.int64),
                    predictions=figures[f"predictions{i}"].astype(np.int64),
                    objective=Objective(
                        beta=beta, tau=tau, error_weight=error_weight, pseudo_count=pseudo_count
                    ),
                    z=float(figures["z"][i]) / labels.size,
                )
            )
    return cases


def load_rules() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    with np.load(_PATH) as figures:
        return figures["grid"], figures["rules"]
