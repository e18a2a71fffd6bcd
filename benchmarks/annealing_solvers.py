"""Solvers for comparison: each searches one table until it reaches the best-known Z.

All except `numpy` evaluate solutions with the same compiled code, so that searches are compared,
not languages.
"""

from __future__ import annotations

import math
import random
import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.evaluator import SchemeEvaluator
from dcs import CorrectionSet, Objective, Schedule, anneal
from dcs.search import kernels

_CORRECTIONS = CorrectionSet.dcs(weight_scale=30)
_OBJECTIVE = Objective()
_TOLERANCE = 1e-9


class Reached(Exception):  # noqa: N818 - a signal, not an error
    """The best-known value was found, or the time limit was reached."""


class Target:
    """Count evaluated solutions, and stop a solver at the best-known value or the time limit."""

    def __init__(
        self, probs: np.ndarray, labels: np.ndarray, *, best: float, limit: float
    ) -> None:
        self.probs, self.labels = probs, labels
        self.best, self.limit = best, limit
        self.lowest, self.judged = math.inf, 0
        self.reached, self.seconds, self.elapsed = False, math.inf, 0.0
        self.evaluator = SchemeEvaluator(probs, labels)
        self.evaluator.value([0] * self.n_classes)
        self.started = time.process_time()

    @property
    def n_classes(self) -> int:
        """The number of classes."""
        return self.probs.shape[1]

    def __call__(self, indices: Any) -> float:
        """Return Z of one solution."""
        z = self.evaluator.value(np.asarray(indices, dtype=np.int64))
        self.note(z)
        return z

    def note(self, z: float, judged: int = 1) -> None:
        """Record an evaluated value."""
        self.judged += judged
        self.lowest = min(self.lowest, z)
        self.elapsed = time.process_time() - self.started
        if self.lowest <= self.best + _TOLERANCE:
            self.reached, self.seconds = True, self.elapsed
            raise Reached
        if self.elapsed > self.limit:
            raise Reached


class Solver:
    """Search for the best solution until the target stops it."""

    def run(self, target: Target, seed: int) -> None:
        """Search until the target stops it."""
        target.started = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                while True:
                    self.search(target, seed)
                    seed += 7919
        except Reached:
            return

    def search(self, target: Target, seed: int) -> None:
        """Search once; called repeatedly with different seeds."""
        raise NotImplementedError


class Ours(Solver):
    """`anneal` with doubling budgets; the time is that of the last one only."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def search(self, target: Target, seed: int) -> None:  # noqa: D102
        budget = 2_000
        while True:
            started = target.started = time.process_time()
            schedule = self.schedule
            if schedule.restarts > 1:
                schedule = replace(schedule, budget=budget)
            result = anneal(target.probs, target.labels, schedule=schedule, seed=seed)
            target.judged = 0
            target.note(result.z, result.evaluations)
            if schedule.restarts == 1:
                # With a single cooling the budget has no effect: retry with another seed.
                seed += 1
                target.limit -= time.process_time() - started
            budget *= 2


class NumPyAnnealing(Solver):
    """Metropolis annealing that evaluates every candidate with vectorised NumPy."""

    def move(self, probs: np.ndarray, labels: np.ndarray, choice: np.ndarray) -> float:
        """Return Z of one solution."""
        corrected = np.stack([_CORRECTIONS[int(k)](probs[:, j]) for j, k in enumerate(choice)], 1)
        lost = corrected.max(axis=1) == 0
        corrected[lost] = probs[lost]
        cells = labels * probs.shape[1] + corrected.argmax(axis=1)
        counts = np.bincount(cells, minlength=probs.shape[1] ** 2)
        return _OBJECTIVE.value(counts.reshape(probs.shape[1], -1))

    def search(self, target: Target, seed: int) -> None:  # noqa: D102
        rng = np.random.default_rng(seed)
        n = target.n_classes
        choice = np.full(n, _CORRECTIONS.identity)
        z = self.move(target.probs, target.labels, choice)
        for t in 0.1 * 0.97 ** np.arange(200):
            for _ in range(5 * n):
                new = choice.copy()
                new[rng.integers(n)] = rng.integers(len(_CORRECTIONS))
                value = self.move(target.probs, target.labels, new)
                target.note(value)
                if value < z or rng.random() < math.exp((z - value) / t):
                    choice, z = new, value


class SimAnneal(Solver):
    """The package `simanneal`, with temperatures on the scale of Z."""

    def search(self, target: Target, seed: int) -> None:  # noqa: D102
        from simanneal import Annealer

        random.seed(seed)

        class Search(Annealer):
            def move(self) -> None:  # noqa: D102
                self.state[random.randrange(len(self.state))] = random.randrange(len(_CORRECTIONS))

            def energy(self) -> float:  # noqa: D102
                return target(self.state)

        search = Search([_CORRECTIONS.identity] * target.n_classes)
        search.Tmax, search.Tmin, search.steps, search.updates = 0.1, 0.0005, 20_000, 0
        search.copy_strategy = "slice"
        search.anneal()


class DualAnnealing(Solver):
    """`scipy.optimize.dual_annealing` on indices rounded down, without its local search."""

    def search(self, target: Target, seed: int) -> None:  # noqa: D102
        from scipy.optimize import dual_annealing

        top = len(_CORRECTIONS)
        dual_annealing(
            lambda x: target(np.minimum(x.astype(np.int64), top - 1)),
            bounds=[(0, top)] * target.n_classes,
            seed=seed,
            no_local_search=True,
            maxiter=100_000,
        )


class TPE(Solver):
    """Optuna's TPE over the indices."""

    def search(self, target: Target, seed: int) -> None:  # noqa: D102
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        names = list(range(len(_CORRECTIONS)))

        def judge(trial: Any) -> float:
            return target(
                [trial.suggest_categorical(f"c{j}", names) for j in range(target.n_classes)]
            )

        study.optimize(judge, n_trials=None, catch=())


class CoordinateDescent(Solver):
    """Repeated exact line searches, class by class, from random solutions."""

    def search(self, target: Target, seed: int) -> None:  # noqa: D102
        table = kernels.make_table(target.probs, target.labels, _CORRECTIONS, _OBJECTIVE)
        state = kernels.make_state(table)
        rng = np.random.default_rng(seed)
        choice = np.full(target.n_classes, _CORRECTIONS.identity)
        while True:
            z, judged = kernels.descend(table, state, choice)
            target.note(z, judged)
            choice[:] = rng.integers(0, len(_CORRECTIONS), choice.size)


_METROPOLIS = Schedule(
    initial_temperature=0.1,
    final_temperature=0.0005,
    cooling_rate=0.9,
    lambda1=50,
    lambda2=100,
    moves="metropolis",
)

SOLVERS: dict[str, Any] = {
    "default": Ours(Schedule()),
    "heat bath, no reheating": Ours(Schedule(reheat=False)),
    "metropolis + descent": Ours(_METROPOLIS),
    "metropolis, plain": Ours(replace(_METROPOLIS, descend=False, reheat=False)),
    "published": Ours(Schedule.published(10_000)),
    "published, 150/300": Ours(Schedule.published(10_000, 150, 300)),
    "coordinate descent": CoordinateDescent(),
    "simanneal": SimAnneal(),
    "dual_annealing": DualAnnealing(),
    "TPE": TPE(),
    "numpy": NumPyAnnealing(),
}
