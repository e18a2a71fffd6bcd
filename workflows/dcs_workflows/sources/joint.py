"""Origins of class probabilities, and which of them have the same rows and are tuned jointly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from dcs.data.table import ProbabilityTable
from dcs.errors import TableError
from dcs.prompting.tasks import Shots
from dcs.seeds import derive_generator
from dcs.selection.ensemble import TableEnsemble
from dcs_workflows.config.sweep import Grouping

#: A table, or an ensemble of tables of the same rows.
Rows: TypeAlias = ProbabilityTable | TableEnsemble


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of the class probabilities that cells are tuned on.

    Attributes
    ----------
    model, task : str
        Where the probabilities come from.
    shots : int, "N" or None
        Number of demonstrations per prompt; None if unknown, or if they differ.
    seed : int
        Root seed of the cells, from which the demonstration seed of a request derives.
    """

    model: str
    task: str
    shots: Shots | None
    seed: int


S = TypeVar("S", bound=Origin)


#: Numbers of tables that the ensemble over all tables tries, and number of random orders.
_TABLES: Final = (2, 3, 4, 6, 9, 13, 19, 28)
_DRAWS: Final = 3


def grouped_over(
    sources: Sequence[S], over: Grouping, *, drawn: Callable[[S], int | None] = lambda source: None
) -> list[tuple[list[S], str]]:
    """Return the groups of two or more sources that differ only in the given respect.

    Each is returned with its name. For all tables of a task there are several groups of each size,
    those of one order being nested. Tables that hold out rows by a seed, which `drawn` returns,
    must hold out the same rows.
    """
    groups: dict[tuple[Any, ...], list[S]] = {}
    for source in sources:
        same: dict[str, tuple[Any, ...]] = {
            "prompts": (source.model, source.task),
            "seeds": (source.model, source.task, source.shots),
            "models": (source.task, source.shots, source.seed),
            "all": (source.task,),
        }
        groups.setdefault((*same[over], drawn(source)), []).append(source)
    several = [group for group in groups.values() if len(group) > 1]
    if over != "all":
        return [(group, f"{len(group)} {over}") for group in several]
    return [each for group in several for each in _nested(group)]


def _nested(group: list[S]) -> Iterator[tuple[list[S], str]]:
    """Yield the first few of a group in some random orders, and all of it."""
    for draw in range(_DRAWS):
        order = derive_generator(draw, "tables").permutation(len(group))
        for size in _TABLES:
            if size < len(group):
                chosen = [group[i] for i in sorted(order[:size])]
                yield chosen, f"{size} of {len(group)} tables, draw {draw + 1}"
    yield group, f"{len(group)} tables"


def joint_names(group: Sequence[Origin], over: Grouping, name: str) -> dict[str, Any]:
    """Return the model, task and shots of an ensemble; shots are None if they differ."""
    first = group[0]
    model = name if over == "all" else f"{first.model} ({name})"
    if over == "models":
        model = " + ".join(dict.fromkeys(source.model for source in group))
    same = over != "all" and all(source.shots == first.shots for source in group)
    return {"model": model, "task": first.task, "shots": first.shots if same else None}


def matched_tables(members: Mapping[str, Mapping[str, ProbabilityTable]]) -> dict[str, Rows]:
    """Return the tables by split: ensembles with matched rows, or those of a single member.

    Raises
    ------
    TableError
        If the members do not have the same rows.
    """
    (first, *others) = members.values()
    if not others:
        return dict(first)
    for name, tables in members.items():
        if tables.keys() != first.keys():
            raise TableError(
                f"{name}: has {' and '.join(tables)} rows; the others have {' and '.join(first)}"
            )
    return {
        split: TableEnsemble.matched({name: tables[split] for name, tables in members.items()})
        for split in first
    }
