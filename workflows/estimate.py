"""How long the rest of a sweep may take, judged by what of it has been done.

Where nothing comparable has been done, it is guessed: the time of scoring from the size of the
models and the length of the texts, that of tuning from the number of trials and rows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from dcs.io import content_key
from dcs.prompting import SPLITS, get_task, render_prefix, render_query, select_demonstrations
from tracking import CellRecord
from workflows.cells import Cell, TableRequest, Variant
from workflows.config.tuner import TunerSettings
from workflows.plan import SweepPlan
from workflows.tables import ProbabilityStore

__all__ = ["GUESSED_GPU", "Estimate", "estimate"]

#: Guesses of GPU hours are for this GPU, which the paper used.
GUESSED_GPU: Final = "A100"
#: What it computes per second when it reads prompts: 40 % of its 312 teraflops.
_FLOPS: Final = 1.2e14
_CHARACTERS_PER_TOKEN: Final = 4.0
#: Billions of parameters, as models have them in their names: Llama-2-13b-hf, gemma-2-2b.
_BILLIONS: Final = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)[bB](?![A-Za-z])")

#: Seconds on one CPU of 2.x GHz: of one trial of the paper's protocol per row, of the front per
#: row, of a baseline per row; and the number of rows below which the rest takes longer.
_TRIAL_SECONDS: Final = 1.5e-4
_FRONT_SECONDS: Final = 1.0e-3
_PEER_SECONDS: Final = 1.0e-4
_FEWEST_ROWS: Final = 500


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a sweep still has to do.

    Attributes
    ----------
    tables, cells : int
        To be scored, and to be computed.
    scoring_seconds, gpu_seconds : float or None
        Of one worker after the other; None where nothing comparable has been measured and the
        models do not say their size.
    cell_seconds : float
        Of one CPU.
    scoring_guessed, cells_guessed : bool
        Whether a part is guessed rather than judged by what has been measured.
    """

    tables: int
    cells: int
    scoring_seconds: float | None
    gpu_seconds: float | None
    cell_seconds: float
    scoring_guessed: bool = False
    cells_guessed: bool = False


def estimate(plan: SweepPlan) -> Estimate:
    """Judge the missing tables by scored ones of their model, missing cells by ended ones.

    Parameters
    ----------
    plan : SweepPlan
        What is there and what is missing.
    """
    sizes = _Sizes()
    scoring = _Scorings(plan, sizes)
    scored = [scoring.of(request) for request in plan.missing_tables.values()]
    costs = _Costs(plan.ended.values())
    cells = [
        costs.of(cell.task, Variant.of(cell), sizes.rows(plan.requests[key]))
        for key, some in plan.missing_cells.items()
        for cell in some
    ]
    cells += [
        costs.of(request.task, variant, sizes.rows(request))
        for key in plan.missing_tables
        for request in plan.requests_of(key)
        for variant in plan.variants
    ]
    known = [cost for cost in scored if cost is not None]
    whole = len(known) == len(scored)
    return Estimate(
        tables=len(scored),
        cells=len(cells),
        scoring_seconds=sum(cost.seconds for cost in known) if whole else None,
        gpu_seconds=sum(cost.gpu_seconds for cost in known) if whole else None,
        cell_seconds=sum(cost.seconds for cost in cells),
        scoring_guessed=any(cost.guessed for cost in known),
        cells_guessed=any(cost.guessed for cost in cells),
    )


@dataclass(frozen=True, slots=True)
class _Cost:
    seconds: float
    gpu_seconds: float = 0.0
    guessed: bool = False


class _Sizes:
    """How much there is to read and to search; the texts of a task are gone through once."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str | None], dict[str, list[int]]] = {}
        self._known: dict[tuple[Any, ...], tuple[int, int]] = {}

    def rows(self, request: TableRequest) -> int:
        """Return the number of optimization rows."""
        return self._of(request)[0]

    def characters(self, request: TableRequest) -> int:
        """Return how long all prompts together are."""
        return self._of(request)[1]

    def _of(self, request: TableRequest) -> tuple[int, int]:
        place = (request.task, request.data, request.limit, request.shots, request.seed)
        if place not in self._known:
            task = get_task(request.task, request.data)
            shown = select_demonstrations(task, request.shots, seed=request.seed)
            texts = (request.task, request.data)
            if texts not in self._texts:
                self._texts[texts] = {
                    split: [len(render_query(task, e.text)) for e in task.examples(split)]
                    for split in SPLITS
                }
            prefix = len(render_prefix(task, shown))
            rows, characters = 0, 0
            for split, lengths in self._texts[texts].items():
                # Demonstrations come from the optimization texts and are not asked about; which
                # of the texts they are makes no difference here.
                asked = lengths[len(shown.examples) :] if split == "optimization" else lengths
                asked = asked[: request.limit]
                characters += sum(asked) + prefix * len(asked)
                if split == "optimization":
                    rows = len(asked)
            self._known[place] = (rows, characters)
        return self._known[place]


class _Scorings:
    """What scoring a table takes: by tables of the same model, of the same task if there are."""

    def __init__(self, plan: SweepPlan, sizes: _Sizes) -> None:
        self._sizes = sizes
        self._engine = plan.config.scoring.engine
        self._measured: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
        store = ProbabilityStore.under(plan.output)
        for key in plan.cells:
            scoring = store.scoring(key)
            if scoring is None:
                continue
            request = plan.requests[key]
            rate = scoring.seconds / max(1, sizes.characters(request))
            for place in _nearest(request.model, request.task, str(request.shots)):
                self._measured[place].append((rate, scoring.gpus))

    def of(self, request: TableRequest) -> _Cost | None:
        """Return the cost of a table, None where there is nothing to judge it by."""
        characters = self._sizes.characters(request)
        for place in _nearest(request.model, request.task, str(request.shots)):
            if place in self._measured:
                seconds = characters * fmean(rate for rate, _ in self._measured[place])
                return _Cost(seconds, seconds * fmean(gpus for _, gpus in self._measured[place]))
        billions = _BILLIONS.findall(request.model)
        if not billions or self._engine == "openai":
            return None
        # Reading a token takes two operations per parameter.
        work = 2.0e9 * float(billions[-1]) * characters / _CHARACTERS_PER_TOKEN
        return _Cost(work / _FLOPS, work / _FLOPS, guessed=True)


class _Costs:
    """What cells take, by ended ones that are as like as possible."""

    def __init__(self, records: Iterable[CellRecord]) -> None:
        self._measured: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for record in records:
            if not record.finished:
                continue
            cell = Cell.from_identity(record.identity)
            tables = record.provenance.get("tables", {})
            rows = tables.get("optimization", {}).get("rows")
            if rows is None:
                continue
            effort = _cpu_seconds(record) / _work(cell.tuner, int(rows))
            for place in _likeness(cell.task, Variant.of(cell)):
                self._measured[place].append(effort)

    def of(self, task: str, variant: Variant, rows: int) -> _Cost:
        """Return the cost of a cell on a table with so many optimization rows."""
        rows = min(rows, variant.optimization_size or rows)
        work = _work(variant.tuner, rows)
        for place in _likeness(task, variant):
            if place in self._measured:
                return _Cost(work * fmean(self._measured[place]))
        return _Cost(work * _usual(variant.tuner), guessed=True)


def _cpu_seconds(record: CellRecord) -> float:
    # Trials of one cell may have run side by side.
    return max(
        (record.finished_ms - record.started_ms) / 1000,
        sum(trial.seconds for trial in record.trials),
    )


def _work(tuner: TunerSettings | None, rows: int) -> float:
    trials = tuner.trials if tuner is not None and tuner.protocol == "paper" else 1
    return float(trials * max(rows, _FEWEST_ROWS))


def _usual(tuner: TunerSettings | None) -> float:
    if tuner is None:
        return _PEER_SECONDS
    return _TRIAL_SECONDS if tuner.protocol == "paper" else _FRONT_SECONDS


def _nearest(*names: str) -> list[tuple[str, ...]]:
    """Return the names, then fewer and fewer of them from the end."""
    return [names[:end] for end in range(len(names), 0, -1)]


def _likeness(task: str, variant: Variant) -> list[tuple[str, ...]]:
    """Return what cells may have in common with one, the most telling first."""
    protocol = "none" if variant.tuner is None else variant.tuner.protocol
    if variant.tuner is None:
        return [(variant.method, str(variant.optimization_size), task), (variant.method,)]
    own = content_key(variant.identity)
    return [(own, task), (own,), (protocol, variant.method, task), (protocol, variant.method)] + [
        (protocol,)
    ]
