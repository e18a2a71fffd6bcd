"""Where the numbers of a probability table came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dcs._messages import show
from dcs.errors import TableError

__all__ = ["Provenance"]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a table's numbers came from. Every field may be unknown (None).

    Parameters
    ----------
    model, revision : str, optional
        The language model and the exact version of its weights.
    task : str, optional
        The classification task.
    shots : int or str, optional
        Demonstrations in the prompt; ``"N"`` stands for one per class.
    demonstration_seed : int, optional
        The seed that drew the demonstrations.
    split : str, optional
        ``"optimization"``, ``"development"``, ``"test"``, or another part's name.
    prompt_hash : str, optional
        Hash of template, instruction, label words and demonstrations.
    scorer, scorer_version : str, optional
        The engine that read the probabilities off the model.
    source : str, optional
        The file the numbers were imported from.

    Raises
    ------
    TableError
        If a field is neither None, text nor an integer.
    """

    model: str | None = None
    revision: str | None = None
    task: str | None = None
    shots: int | str | None = None
    demonstration_seed: int | None = None
    split: str | None = None
    prompt_hash: str | None = None
    scorer: str | None = None
    scorer_version: str | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            allowed = {"shots": (int, str), "demonstration_seed": (int,)}.get(field.name, (str,))
            if value is not None and (isinstance(value, bool) or not isinstance(value, allowed)):
                words = " or ".join("an integer" if kind is int else "a text" for kind in allowed)
                raise TableError(
                    f"provenance field {field.name} is {show(value)}; {words} or nothing is needed"
                )

    def to_dict(self) -> dict[str, int | str]:
        """Return the known fields, ready for JSON.

        Returns
        -------
        dict
            Field names and values.
        """
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Provenance:
        """Rebuild what :meth:`to_dict` gave.

        Parameters
        ----------
        fields : mapping
            Field names and values.

        Returns
        -------
        Provenance
            The provenance.

        Raises
        ------
        TableError
            If a field is unknown or has a value that is not allowed.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        for key in fields:
            if key not in known:
                raise TableError(
                    f"unknown provenance field {show(key)}; allowed: {', '.join(sorted(known))}"
                )
        return cls(**fields)
