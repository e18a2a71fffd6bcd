"""Measure how prompts of one table are scored by several actors, and without pauses.

    python -m benchmarks.actors delay     # 1 and 4 actors whose engine has a fixed delay;
                                          # then 4, one of which is killed in the middle
    python -m benchmarks.actors vllm      # shards of a table given to vLLM one after the other, as
                                          # sweeps give them, and all at once

The second part needs vLLM:

    PYTHONPATH=.:tracking:workflows .venv-vllm/bin/python -m benchmarks.actors vllm
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dcs.prompting.tasks import PromptPrefix
from dcs.scoring import Advance, StoredScorer
from dcs.scoring.generation import ScorerInfo
from dcs_workflows.cluster.scoring import ScoringActor, TableScoring
from dcs_workflows.config.scoring import ScoringSettings
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.plan import plan_sweep
from dcs_workflows.sources.scored import StoredTables, TableRequest, table_requests


class Delayed:
    """A scorer that takes a fixed time for each prompt."""

    name, version, model, revision = "delayed", "1", "none", "1"
    settings = {"dtype": "float64"}  # noqa: RUF012

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def score(
        self,
        prefix: str | PromptPrefix,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Advance | None = None,
    ) -> NDArray[np.float64]:
        """Return probabilities that depend on the length of each query alone."""
        time.sleep(self._seconds * len(queries))
        lengths = np.array([[len(query)] for query in queries]) + np.arange(len(label_words))
        return np.asarray(lengths / lengths.sum(axis=1, keepdims=True), dtype=np.float64)

    def close(self) -> None:
        """Do nothing: no model is held."""


def delayed_actor(seconds: float, pids: Path, actors: int) -> type[ScoringActor]:
    class DelayedActor(ScoringActor):
        def load(self) -> ScorerInfo:
            self._scorer = StoredScorer(Delayed(seconds), self._folder)
            (pids / str(os.getpid())).touch()
            # Processes start one after the other: none begins before all can.
            while len([*pids.iterdir()]) < actors:
                time.sleep(0.02)
            return ScorerInfo.of(self._scorer)

    return DelayedActor


def table_seconds(config: SweepConfig, actors: int, seconds: float, *, kill: bool) -> float:
    """Return the time from the first loaded model to the complete table; check its numbers."""
    import ray

    import dcs_workflows.cluster.pool as pool_module

    with tempfile.TemporaryDirectory() as folder:
        pids = Path(folder) / "pids"
        pids.mkdir()
        pool_module.ScoringActor = delayed_actor(seconds, pids, actors)  # type: ignore[misc]
        output = Path(folder)
        plan = plan_sweep(config, output)
        ((key, request),) = plan.missing_tables.items()
        work = Counter[str]()
        pool = pool_module.ScoringPool(plan, work)
        start, complete = None, None
        total = len(request.prompts.texts)
        while complete is None:
            pool.fill({"num_cpus": 1, "num_gpus": 0}, actors)
            (ready, *_), _ = ray.wait(list(pool.running), num_returns=1)
            complete = pool.end(ready)
            start = start or time.perf_counter()
            if kill and work["prompts"] >= total / 2:
                os.kill(int(next(pids.iterdir()).name), signal.SIGKILL)
                kill = False
        elapsed = time.perf_counter() - start
        scorer = Delayed(0.0)
        chosen = request.prompts
        expected = chosen.tables(scorer.score(*chosen.prompts()), ScorerInfo.of(scorer), {})
        assert StoredTables(output, key).digests == {
            split: table.digest for split, table in expected.items()
        }
    return elapsed


def measure_delay(prompts: int, seconds: float) -> None:
    from benchmarks.sweep import local_ray

    config = SweepConfig(name="actors", tasks=("helpdesk",), methods=("icl",), limit=prompts)
    (request,) = table_requests(config)
    total = len(request.prompts.texts)
    with local_ray(5):
        one, four, killed = (
            table_seconds(config, actors, seconds, kill=kill)
            for actors, kill in ((1, False), (4, False), (4, True))
        )
    print(f"{total} prompts of {1000 * seconds:g} ms: one actor {one:.1f} s")
    print(f"four actors {four:.1f} s: {one / four:.2f} times as fast")
    print(f"four actors, one killed {killed:.1f} s: {killed / four:.2f} times as long; same table")


def measure_vllm(prompts: int, repeats: int) -> None:
    settings = ScoringSettings(engine="vllm", dtype="float32", max_length=1024)
    request = TableRequest(
        model="tiny_lm", task="helpdesk", shots="N", seed=0, limit=prompts // 2, scoring=settings
    )
    table = TableScoring("k", request)
    shards = [table.prompts.prompts(shard) for shard in table.left]
    with closing(settings.load("tiny_lm")) as scorer, tempfile.TemporaryDirectory() as folder:

        def in_turn() -> None:
            for shard in shards:
                scorer.score(*shard)

        def as_sweeps_do() -> None:
            stored = StoredScorer(scorer, tempfile.mkdtemp(dir=folder))
            for shard in shards:
                stored.score(*shard)

        ways: dict[str, Callable[[], object]] = {
            f"{len(shards)} shards, each after the other": in_turn,
            "the same as sweeps do, stored": as_sweeps_do,
            "all at once": lambda: scorer.score(*table.prompts.prompts()),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        in_turn()
        for _ in range(repeats):
            for name, way in ways.items():
                start = time.perf_counter()
                way()
                times[name].append(time.perf_counter() - start)
    for name, found in times.items():
        print(f"{name}: {table.n_prompts / min(found):.0f} prompts per second")


def main() -> None:
    parser = argparse.ArgumentParser(description="Scoring of one table by several actors.")
    parser.add_argument("part", choices=("delay", "vllm"))
    parser.add_argument("--prompts", type=int, help="at most; 3000, with vllm 2000")
    parser.add_argument("--seconds", type=float, default=0.02, help="of a prompt with a delay")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.part == "delay":
        measure_delay(options.prompts or 3000, options.seconds)
    else:
        measure_vllm(options.prompts or 2000, options.repeats)


if __name__ == "__main__":
    main()
