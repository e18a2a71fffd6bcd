"""Replays what a tracking store has missed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

from dcs.errors import TrackingError
from tracking.destinations import Destination
from tracking.outbox import Outbox
from tracking.recorder import Recorder
from tracking.reports import RecorderReport, SweepStatus
from tracking.stores import redact, resolve_tracking_uri, stored_uri

__all__ = ["sync"]


def sync(
    output: Path | str,
    *,
    tracking_uri: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[RecorderReport, ...]:
    """Record everything in the outbox of `output` that its store does not have yet.

    Each cell is recorded exactly once, however often this runs and wherever an earlier attempt
    stopped. A sweep whose driver died is ended as KILLED.

    Parameters
    ----------
    output : path-like
        The folder of a sweep's results.
    tracking_uri : str, optional
        Where to record instead: every sweep of the folder goes there, whatever its store has.
        A store with a password needs this (or ``MLFLOW_TRACKING_URI``), since passwords are not
        kept on the disk.
    progress : callable, optional
        Called with the cells recorded so far and their number.

    Returns
    -------
    tuple of RecorderReport
        One for each sweep that there was something to do for.

    Raises
    ------
    dcs.errors.TrackingError
        When `output` holds no results, a sweep is being recorded at the moment, or its password
        is missing.
    """
    outbox = Outbox(output)
    known = [d for d in outbox.destinations() if not d.info.moved]
    if not known:
        raise TrackingError(f"{outbox.output}: no sweep was recorded from here; check --output")
    if tracking_uri is None:
        work = [(_store_of(d, outbox), d) for d in known if _is_unfinished(d)]
    else:
        uri = resolve_tracking_uri(tracking_uri, output)
        work = [(uri, _moved(d, uri, outbox)) for d in known]
        work = [(uri, d) for uri, d in work if _is_unfinished(d)]
    total = sum(len(d.pending()) for _, d in work)
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, max(done, total))

    reports = []
    for uri, destination in work:
        status = cast(SweepStatus, destination.info.status or "KILLED")
        recorder = Recorder.resume(uri, outbox, destination, progress=one_more)
        reports.append(recorder.finish(status))
    return tuple(reports)


def _is_unfinished(destination: Destination) -> bool:
    undrawn = destination.info.figures and destination.undrawn()
    return bool(destination.pending() or not destination.info.ended or undrawn)


def _store_of(destination: Destination, outbox: Outbox) -> str:
    stored = destination.info.tracking_uri
    if stored is None or "***" not in stored:
        return resolve_tracking_uri(stored, outbox.output)
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    if given and redact(resolve_tracking_uri(given, outbox.output)) == stored:
        return resolve_tracking_uri(given, outbox.output)
    raise TrackingError(
        f"the password of {stored} is not kept on the disk; give the whole address with "
        "--tracking-uri or MLFLOW_TRACKING_URI"
    )


def _moved(destination: Destination, uri: str, outbox: Outbox) -> Destination:
    """Return the destination of the same sweep in another store, with all cells queued."""
    place = stored_uri(uri, outbox.output)
    if place == destination.info.tracking_uri:
        return destination
    info = destination.info
    with destination:
        # Waiting for a store that was given up would never end.
        if destination.pending() or not info.ended:
            destination.save(moved=True)
    moved = outbox.destination(info.moved_to(place))
    with moved:
        moved.save()
        for key in destination.keys:
            moved.queue(key, destination.digest(key) or "")
    return moved
