"""Tables that the user gives: files, folders and patterns, and what names each of them."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

from dcs.data.columns import Reading
from dcs.data.files import STEMS, SUFFIXES
from dcs.data.reader import open_sources, refuse_other_texts, source_files, texts_by_id
from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError, TableError
from dcs.io import as_values
from dcs.prompting.tasks import parse_shots
from dcs_workflows.config.sweep import Grouping, SweepConfig, TableChoice
from dcs_workflows.sources.held_out import hold_out
from dcs_workflows.sources.joint import Origin, Rows, grouped_over, joint_names, matched_tables

#: Fields of a pattern of tables, by name: the form of their values.
_FIELDS: Final = {"model": "[^/]+?", "task": "[^/]+?", "shots": r"N|\d{1,6}", "seed": r"\d{1,18}"}
_FIELD: Final = re.compile(r"{(.*?)}")

#: Names of files and folders that specify an origin.
_ORIGIN: Final = "{task}_{model}_shot{shots}_seed{seed}"


#: Paths of a table: one source of tables, or a pair of the optimization and test rows.
Paths: TypeAlias = tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTable(Origin):
    """A user-supplied table, and how its rows are split.

    Attributes
    ----------
    members : mapping of str to tuple of pathlib.Path
        Sources by name: one source of tables, or a pair of the optimization and test rows.
        Several members have the same rows.
    config : SweepConfig
        How the files are read, and which rows are held out if the source has no test rows.
    digests : dict of str to str
        Content hash of the rows of each split.
    own_seed : bool
        Whether the seed is that of the table instead of a seed of the sweep.
    remarks : tuple of str
        What was inferred about the files, in lines for the user.
    """

    members: Mapping[str, Paths]
    config: SweepConfig
    digests: dict[str, str] = field(default_factory=dict)
    own_seed: bool = False
    remarks: tuple[str, ...] = ()
    complete: ClassVar = True

    @property
    def files(self) -> Mapping[str, Path]:
        """File of the rows of each split; empty for rows that are joined from several."""
        first, *others = self.members.values()
        return {} if others else {"optimization": first[0], "test": first[-1]}

    def opened(self) -> tuple[dict[str, Rows], GivenTable]:
        """Return the rows as they are now, and the table with what is to be said of them."""
        tables, remarks = _read_members(self.members, self.config.reading)
        rows, said = hold_out(tables, self.config, self.seed)
        digests = {split: table.digest for split, table in rows.items()}
        return rows, replace(self, digests=digests, remarks=(*remarks, *said))

    def read(self) -> dict[str, Rows]:
        """Return the optimization and the test rows.

        Raises
        ------
        TableError
            If the source cannot be read, or has changed since the sweep was planned.
        """
        rows, now = self.opened()
        if now.digests != self.digests:
            names = ", ".join(self.members)
            raise TableError(f"{names}: changed since the sweep began; run the command again")
        return rows


def _read_members(
    members: Mapping[str, Paths], reading: Reading
) -> tuple[dict[str, Rows], list[str]]:
    """Return tables of the same rows by split, and what is to be said about them."""
    read = {name: _read_member(each, reading) for name, each in members.items()}
    tables = matched_tables({name: own for name, (own, _, _) in read.items()})
    for part in tables:
        refuse_other_texts({name: texts[part] for name, (_, _, texts) in read.items()})
    remarks = [line for _, lines, _ in read.values() for line in lines]
    for name, (own, _, _) in read.items():
        total, kept = (sum(each.n_rows for each in rows.values()) for rows in (own, tables))
        if kept < total:
            remarks.append(f"{name}: {total - kept} of {total} rows left out: not in all tables")
    return tables, remarks


def _read_member(
    paths: Sequence[Path], reading: Reading
) -> tuple[dict[str, ProbabilityTable], tuple[str, ...], dict[str, Any]]:
    """Return the tables of a source by split, what is to be said about them, and their texts."""
    files = [each for path in paths for each in (path.iterdir() if path.is_dir() else [path])]
    stamps = [(file, file.stat()) for file in sorted(files) if file.is_file()]
    state = tuple((file, stat.st_mtime_ns, stat.st_size) for file, stat in stamps)
    return _read_once(tuple(paths), reading, state)


# Read for the plan, for the cells and for what is shown, but parsed once unless it changes.
@lru_cache(maxsize=4)
def _read_once(
    paths: Paths, reading: Reading, state: object
) -> tuple[dict[str, ProbabilityTable], tuple[str, ...], dict[str, Any]]:
    sources = open_sources(paths[0], reading, test=paths[1] if paths[1:] else None)
    tables = {part: source.table for part, source in sources.items()}
    for table in tables.values():
        refuse_corrected(table, paths[0])
    texts = {part: texts_by_id(source) for part, source in sources.items()}
    return tables, tuple(each.remark for each in sources.values() if each.remark), texts


def refuse_corrected(table: ProbabilityTable, file: Path) -> None:
    """Raise TableError if the probabilities of a file have been corrected already."""
    if by := table.provenance.corrected_by:
        raise TableError(f"{file}: already corrected by {by}; give the uncorrected probabilities")


def given_tables(config: SweepConfig) -> list[GivenTable]:
    """Return the given tables of a sweep, one for each seed.

    A folder with optimization and test rows and a known demonstration seed, and a table whose
    seed is named by a pattern, are only used with that seed; all others are used with each seed
    of the sweep.

    Parameters
    ----------
    config : SweepConfig
        The sweep.

    Raises
    ------
    ConfigError
        If a pattern matches nothing or has an unknown field.
    TableError
        If a source cannot be read.
    """
    found: list[GivenTable] = []
    for members, named in _expand_sources(config.tables):
        tables, _ = _read_members(members, config.reading)
        origin = tables["optimization"].provenance
        noted = {"model": origin.model, "task": origin.task, "shots": origin.shots}
        if "test" in tables and len(next(iter(members.values()))) == 1:
            noted["seed"] = origin.demonstration_seed
        by_name = re.fullmatch(_form(_ORIGIN), named["name"])
        # A pattern comes before the provenance, and this before the name of the file.
        about: dict[str, Any] = {
            **dict.fromkeys(("model", "task"), named["name"]),
            **(by_name.groupdict() if by_name else {}),
            **{key: value for key, value in noted.items() if value not in (None, "")},
            **named,
        }
        shots, own = about.get("shots"), about.get("seed")
        for seed in config.seeds if own is None else (int(own),):
            given = GivenTable(
                members=members,
                model=about["model"],
                task=about["task"],
                shots=None if shots is None else parse_shots(str(shots)),
                seed=seed,
                config=config,
                own_seed=own is not None,
            )
            found.append(given.opened()[1])
    found += [
        _join(some, over, name)
        for over in config.ensemble
        for some, name in grouped_over(found, over, drawn=lambda g: None if g.own_seed else g.seed)
    ]
    origin_of = attrgetter("model", "task", "shots", "seed")
    # Tables with the same origin are named after their files, then after their paths.
    for by_path in (False, True):
        counts = Counter(map(origin_of, found))
        for index, given in enumerate(found):
            if counts[origin_of(given)] > 1:
                seeds = {
                    each.seed for each in found if origin_of(each)[:3] == origin_of(given)[:3]
                }
                if given.own_seed and len(seeds) > 1:
                    raise ConfigError(
                        f"tables: {' + '.join(given.members)} of several files has one model, "
                        "task, shots and seed; name them apart, as by {task} in a pattern"
                    )
                first_paths = (str(first) for first, *_ in given.members.values())
                task = " + ".join(first_paths if by_path else given.members)
                found[index] = replace(given, task=task)
    return found


def _join(group: Sequence[GivenTable], over: Grouping, name: str) -> GivenTable:
    members = [item for given in group for item in given.members.items()]
    if len({name for name, _ in members}) < len(members):
        members = [(str(paths[0]), paths) for _, paths in members]
    return replace(group[0], members=dict(members), **joint_names(group, over, name)).opened()[1]


def source_name(path: Path) -> str:
    """Return the name of a folder (even if given as ``.``), or of a file without suffix."""
    plain = path.with_suffix("") if Path(path.stem).suffix in SUFFIXES else path
    return Path(os.path.abspath(path)).name if path.is_dir() else plain.stem


def _expand_sources(
    choices: Sequence[TableChoice],
) -> Iterator[tuple[dict[str, Paths], dict[str, str]]]:
    """Yield the members of each source, and what names it, without duplicates.

    That is ``name``, for what nothing else names, and the fields of its pattern.
    """
    seen: dict[tuple[Paths, ...], dict[str, Paths]] = {}
    sources: list[tuple[dict[str, Paths], dict[str, str]]]
    for choice in choices:
        if isinstance(choice, str):
            sources = [
                ({source_name(one): (one,)}, {"name": source_name(one), **fields})
                for path, fields in _matching(choice).items()
                for one in source_files(path)
            ]
        else:
            named = choice if isinstance(choice, dict) else {source_name(Path(choice[0])): choice}
            members: dict[str, Paths] = {
                name: tuple(Path(path).expanduser() for path in as_values(pair))
                for name, pair in named.items()
            }
            sources = [(members, {"name": " + ".join(members)})]
        for members, about in sources:
            places = tuple(tuple(path.resolve() for path in paths) for paths in members.values())
            if places in seen:
                continue
            seen[places] = members
            files = [own for each in seen.values() for own, *more in each.values() if not more]
            parts = [file for file in files if file.stem in STEMS]
            if len({part.parent for part in parts}) < len(parts):
                raise ConfigError(
                    f"tables: {parts[-1]} and another are the parts of one table; give their "
                    "folder, or both as [OPTIMIZATION, TEST]"
                )
            yield members, about


def _matching(choice: str) -> dict[str, dict[str, str]]:
    """Return the paths that match a pattern, each with the values of the fields of the pattern.

    If there are fields, ``name`` is the folder before the first of them, so that tables which
    differ in their fields alone have the same name.
    """
    pattern = os.path.expanduser(choice)
    fields = dict.fromkeys(_FIELD.findall(pattern))
    if Path(pattern).exists() or not (fields or glob.has_magic(pattern)):
        return {pattern: {}}
    form = _form(pattern.replace("**/", "*"))
    folder = os.path.dirname(re.split(r"[{*?[]", pattern)[0])
    common = {"name": source_name(Path(folder))} if fields else {}
    paths = sorted(glob.glob(_FIELD.sub("*", pattern), recursive=True))
    found = {path: re.match(form, path) for path in paths}
    matching = {path: common | each.groupdict() for path, each in found.items() if each}
    if not matching:
        raise ConfigError(
            f"tables: {choice} matches no file or folder; the fields of a pattern are "
            "{model}, {task}, {shots} (a number or N) and {seed} (a number)"
        )
    return matching


def _form(pattern: str) -> str:
    """Return the regular expression of a pattern with fields, a group for each."""
    form = fnmatch.translate(pattern)
    for name, values in _FIELDS.items():
        field = re.escape(f"{{{name}}}")
        form = form.replace(field, f"(?P<{name}>{values})", 1)
        form = form.replace(field, f"(?P={name})")
    return form
