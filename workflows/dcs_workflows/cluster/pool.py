"""The actors that score the tables of a sweep, and the shards that they pull."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from dcs.errors import DCSError, ScoringError, last_line
from dcs.scoring.generation import ScorerInfo
from dcs_workflows.cluster.connect import ANSWER_SECONDS, check_processes, gone
from dcs_workflows.cluster.scoring import IN_FLIGHT, ScoringActor, TableScoring
from dcs_workflows.plan import SweepPlan
from dcs_workflows.sources.scored import StoredTables, TableRequest, request_key

#: Number of actors that a shard, or the loading of a model, may take with it.
_DEATHS = 3


@dataclass(slots=True, eq=False)
class _Actor:
    """An actor of the pool: what its model is once it is loaded, and its last table.

    `calls` are the shards that it has been given and not returned.
    """

    handle: Any
    model: str
    gpus: float
    info: ScorerInfo | None = None
    table: TableScoring | None = None
    calls: int = 0


@dataclass(frozen=True, slots=True)
class _Call:
    """A shard that an actor scores, or the loading of its model if there is no table."""

    actor: _Actor
    table: TableScoring | None = None
    shard: slice = field(default_factory=lambda: slice(0))


def check_alive() -> None:
    """Run a test task after Ray has reported the death of a worker or a node.

    Raises
    ------
    ClusterError
        If the cluster does not complete it.
    """
    check_processes()
    try:
        ray.get(ray.remote(num_cpus=0)(lambda: True).remote(), timeout=ANSWER_SECONDS)
    except RayError as error:
        raise gone(last_line(error)) from error


class ScoringPool:
    """Score tables with the actors of a Ray cluster.

    Actors pull shards as they finish. An actor first takes those of its last table, whose
    demonstrations its engine has cached, then those of a table that nobody works on, then helps
    with the table that has the most left. The shards of an actor that dies go to the others.

    Parameters
    ----------
    plan : SweepPlan
        The sweep whose missing tables are scored; this process writes them.
    work : Counter of str
        Counts the ``prompts`` that are scored, of these the ``requests`` to a model, and their
        ``tokens``.

    Attributes
    ----------
    unscored : list of ScoringError
        Why tables could not be scored.
    actors : list
        The actors.
    running : dict
        The calls in flight, by reference.
    """

    def __init__(self, plan: SweepPlan, work: Counter[str]) -> None:
        self.unscored: list[ScoringError] = []
        self._plan, self._settings, self._work = plan, plan.config.scoring, work
        self._waiting = deque(plan.missing_tables.items())
        self._open: list[TableScoring] = []
        self.actors: list[_Actor] = []
        self.running: dict[Any, _Call] = {}
        self._infos: dict[str, ScorerInfo] = {}
        self._deaths: Counter[tuple[str, int]] = Counter()
        # Restarted by the pool, so that its shards need not wait for it.
        self._class: Any = ray.remote(max_restarts=0)(ScoringActor)

    def stop(self) -> None:
        """Give no more work."""
        self._waiting.clear()
        for table in self._open:
            table.left.clear()

    def fill(self, options: Mapping[str, Any], slots: int) -> None:
        """Give work to all actors, start those that are missing and release those without work.

        Parameters
        ----------
        options : mapping
            Ray options of an actor.
        slots : int
            Maximum number of actors.
        """
        while self._waiting and sum(bool(table.left) for table in self._open) < slots:
            self._open_next()
        for depth in range(IN_FLIGHT):
            # The last shards wait for whoever is free first, not in the queue of one actor.
            least = slots if depth else 1
            for actor in self.actors:
                ready = actor.info is not None and actor.calls == depth
                if ready and self._n_left(actor.model) >= least:
                    self._give(actor)
        for actor in [*self.actors]:
            if actor.calls or self._n_left(actor.model):
                continue
            self.actors.remove(actor)
            if actor.info is None:  # waits for a node, or loads its model
                self.running = {ref: c for ref, c in self.running.items() if c.actor != actor}
                ray.kill(actor.handle)
            # Without a handle the actor closes its model and ends. Its tables still refer to it.
            actor.handle = None
        while len(self.actors) < slots and (model := self._wanted()) is not None:
            folder = self._plan.output / "shards"
            handle = self._class.options(**options).remote(model, folder, self._settings)
            actor = _Actor(handle, model, options["num_gpus"])
            self.actors.append(actor)
            self.running[handle.load.remote()] = _Call(actor)

    def _open_next(self) -> None:
        key, request = self._waiting.popleft()
        try:
            if request_key(request) != key:
                # Stored under this key, the table would be mistaken for the planned one.
                raise ScoringError(
                    "the texts or the model have changed since the sweep began; run the same "
                    "command again"
                )
            self._open.append(TableScoring(key, request))
        except DCSError as error:
            self._skip(request, error)

    def _give(self, actor: _Actor) -> None:
        """Give an actor its next shard."""
        tables, table = self._left(actor.model), actor.table
        if table is None or table not in tables:
            taken = {other.table for other in self.actors}
            fresh = [each for each in tables if each not in taken]
            table = actor.table = fresh[0] if fresh else max(tables, key=lambda t: len(t.left))
        shard = table.left.popleft()
        reference = actor.handle.score.remote(table.prompts.prompts(shard))
        actor.calls += 1
        self.running[reference] = _Call(actor, table, shard)

    def _left(self, model: str) -> list[TableScoring]:
        """Return the tables of a model that have shards to be scored."""
        return [t for t in self._open if t.left and t.request.model == model]

    def _n_left(self, model: str) -> int:
        """Return the number of shards of a model that no actor works on."""
        return sum(len(table.left) for table in self._left(model))

    def _wanted(self) -> str | None:
        """Return a model that has more shards than its actors will take when they are loaded."""
        loading = Counter(actor.model for actor in self.actors if actor.info is None)
        models = (table.request.model for table in self._open)
        return next((m for m in models if self._n_left(m) > IN_FLIGHT * loading[m]), None)

    def end(self, reference: Any) -> str | None:
        """Process a call that has ended.

        Returns
        -------
        str or None
            Key of the table that is complete now.

        Raises
        ------
        ClusterError
            If the cluster is lost.
        DCSError or OSError
            If a table cannot be written, for example because the disk is full.
        """
        call = self.running.pop(reference)
        actor, table = call.actor, call.table
        actor.calls -= table is not None
        try:
            result = ray.get(reference)
        except RayTaskError as error:
            # The actor is still usable.
            self._fail(call, error)
            return None
        except RayError as error:
            check_alive()
            self._lose(call, error)
            return None
        if table is None:
            self._admit(actor, result)
            return None
        table.add(call.shard, result, actor, actor.gpus)
        self._work.update(prompts=len(result.probs), requests=result.scored, tokens=result.tokens)
        if table.unscored or table not in self._open:
            return None
        self._open.remove(table)
        try:
            table.store(StoredTables(self._plan.output, table.key), self._infos[actor.model])
        except ScoringError as error:
            self._skip(table.request, error)  # no row is left
            return None
        return table.key

    def _admit(self, actor: _Actor, info: ScorerInfo) -> None:
        """Admit an actor whose model is loaded, if its numbers are those of the others."""
        known = self._infos.setdefault(actor.model, info)
        if info == known:
            actor.info = info
            return
        different = ScoringError(
            f"two nodes load different versions of {actor.model}: {known.version}, revision "
            f"{known.revision}, {dict(known.settings)}, and {info.version}, revision "
            f"{info.revision}, {dict(info.settings)}; install the same on both"
        )
        self._fail(_Call(actor), different)

    def _lose(self, call: _Call, error: RayError) -> None:
        """Give the shard of an actor that died to another one."""
        actor, table = call.actor, call.table
        if actor in self.actors:
            self.actors.remove(actor)
        place = (actor.model, -1) if table is None else (table.key, call.shard.start)
        self._deaths[place] += 1
        if self._deaths[place] > _DEATHS:
            self._fail(call, error)
        elif table is not None:
            table.left.appendleft(call.shard)

    def _fail(self, call: _Call, error: Exception) -> None:
        """Give up the table of a call, or all tables of a model that cannot be loaded twice."""
        model, table = call.actor.model, call.table
        own = [each for each in self._open if each.request.model == model]
        lost = own if table is None else [each for each in own if each is table]
        requests = [each.request for each in lost]
        if table is None:
            if call.actor in self.actors:
                self.actors.remove(call.actor)
            raised = isinstance(error, RayTaskError)
            if call.actor.gpus and raised and not self._deaths[model, -2]:
                # Once more, by a new process: the GPU may not have been free yet.
                self._deaths[model, -2] += 1
                return
            requests += [request for _, request in self._waiting if request.model == model]
            self._waiting = deque(item for item in self._waiting if item[1].model != model)
        self._open = [each for each in self._open if each not in lost]
        for request in requests:
            self._skip(request, error)

    def _skip(self, request: TableRequest, error: Exception) -> None:
        """Note why a table is not scored; reported when all other work is done."""
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, OSError):
            # A full disk, for example, affects the other tables too: stop.
            raise cause from error
        reason = str(cause) if isinstance(cause, DCSError) else last_line(error)
        wrapped = ScoringError(f"scoring {request.label} failed: {' '.join(reason.split())}")
        # Its frames hold a handle of the actor, which would occupy its CPU and GPU.
        wrapped.__cause__ = error.with_traceback(None)
        self.unscored.append(wrapped)
