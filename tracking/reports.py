"""What a recorder answers, and the option of which trials it gives runs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dcs._messages import suggest
from dcs.errors import ConfigError

__all__ = ["RecorderReport", "SweepStatus", "check_figures", "parse_trials"]

SweepStatus = Literal["FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderReport:
    """What became of the records of a sweep.

    Attributes
    ----------
    tracking_uri, experiment : str
        Where they go; without a password.
    experiment_id, parent_run_id : str or None
        None when the store was never reached.
    recorded : int
        Cells written to the store by this recorder.
    pending : int
        Cells that are only in the outbox.
    rejected : mapping of str to str
        Those of them that the store answered but did not take: key and reason.
    damaged : tuple of str
        Outbox files that cannot be read, one line each.
    status : {"FINISHED", "FAILED", "KILLED"}
        End of the sweep.
    ended : bool
        Whether the store knows of the end.
    message : str
        One line for people, with the command that replays what is pending.
    """

    tracking_uri: str
    experiment: str
    experiment_id: str | None
    parent_run_id: str | None
    recorded: int
    pending: int
    rejected: Mapping[str, str]
    damaged: tuple[str, ...]
    status: str
    ended: bool
    message: str


def parse_trials(text: str | int) -> str | int:
    """Read the option of which trials get runs: ``all``, ``none``, ``best:K`` or ``K``.

    Parameters
    ----------
    text : str or int
        What was typed.

    Returns
    -------
    str or int
        ``all``, ``none``, or a number of trials.

    Raises
    ------
    dcs.errors.ConfigError
        For anything else.
    """
    number = str(text).removeprefix("best:")
    if number.isascii() and number.isdigit():
        return int(number)
    if text in ("all", "none"):
        return text
    hint = suggest(text, ["all", "none"])
    raise ConfigError(f"tracking.trials is {text!r}{hint}; allowed: all, none, best:K")


def check_figures(figures: str) -> str:
    """Return the option of which figures are drawn, or refuse it."""
    if figures in ("all", "none"):
        return figures
    raise ConfigError(
        f"tracking.figures is {figures!r}{suggest(figures, ['all', 'none'])}; allowed: all, none"
    )
