"""The probability tables on disk: scored once, read for ever after."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock
from pydantic import TypeAdapter

from dcs.data.table import ProbabilityTable
from dcs.errors import TableError
from dcs.io import atomic_write_text, read_json
from dcs.messages import one_line
from dcs.prompting import SPLITS

__all__ = ["ProbabilityStore", "Scoring"]


@dataclass(frozen=True, slots=True)
class Scoring:
    """How long a pair of tables took.

    Attributes
    ----------
    model : str
        The model, as it was named.
    seconds : float
        Wall-clock time.
    rows : int
        Prompts scored.
    gpus : float
        GPUs held for that time.
    digests : dict of str to str
        Content hash of each table, by split.
    scorer : dict of str to str
        Engine, its version, the model's revision, precision and label rule, as they turned out.
    demonstrations : list of str
        Ids of the texts shown in the prompts.
    remarks : list of str
        What the engine has to say, e.g. labels missing from a server's answers.
    """

    model: str
    seconds: float
    rows: int
    gpus: float
    digests: dict[str, str]
    scorer: dict[str, str] = field(default_factory=dict)
    demonstrations: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


_SCORING = TypeAdapter(Scoring)


@dataclass(frozen=True, slots=True)
class ProbabilityStore:
    """A folder of Parquet files, two for each key, and a note of how they came about.

    Attributes
    ----------
    root : pathlib.Path
        The folder; made at the first write.
    """

    root: Path

    @classmethod
    def under(cls, output: Path) -> ProbabilityStore:
        """Return the store of an output folder."""
        return cls(output / "probabilities")

    def path(self, key: str, split: str) -> Path:
        """Return where a table lies."""
        return self.root / key / f"{split}.parquet"

    def _note(self, key: str) -> Path:
        return self.root / key / "scoring.json"

    def scoring(self, key: str) -> Scoring | None:
        """Return how a pair of tables came about, or None if it is not there.

        The note is written last: where it is, the tables are whole.

        Raises
        ------
        TableError
            The note is damaged; names the file.
        """
        path = self._note(key)
        if not path.is_file() or not all(self.path(key, split).is_file() for split in SPLITS):
            return None
        try:
            note = _SCORING.validate_python(read_json(path, error=TableError))
            if set(note.digests) != set(SPLITS):
                raise ValueError("digests of other tables")
        except ValueError as error:
            raise TableError(
                f"{path}: damaged ({one_line(error)}); remove the folder {key} to have its "
                "tables scored again"
            ) from None
        return note

    def digests(self, key: str) -> dict[str, str] | None:
        """Return the content hashes of both tables, or None unless both are there."""
        scoring = self.scoring(key)
        return None if scoring is None else scoring.digests

    def read(self, key: str) -> dict[str, ProbabilityTable]:
        """Return both tables of a key.

        Raises
        ------
        TableError
            A file is missing, damaged or another one than was scored; names it.
        """
        tables = {str(split): ProbabilityTable.read(self.path(key, split)) for split in SPLITS}
        for split, digest in (self.digests(key) or {}).items():
            if tables[split].digest != digest:
                # Cells are named by the note: they would be kept under the name of other numbers.
                raise TableError(
                    f"{self.path(key, split)}: changed since it was scored; put the file back, "
                    f"or remove the folder {key} to have its tables scored again"
                )
        return tables

    def write(
        self,
        key: str,
        tables: Mapping[str, ProbabilityTable],
        *,
        model: str,
        seconds: float,
        gpus: float,
        scorer: Mapping[str, str] | None = None,
        demonstrations: Sequence[str] = (),
        remarks: Sequence[str] = (),
    ) -> Scoring:
        """Write both tables of a key and how they came about."""
        scoring = Scoring(
            model=model,
            seconds=seconds,
            rows=sum(table.n_rows for table in tables.values()),
            gpus=gpus,
            digests={split: table.digest for split, table in tables.items()},
            scorer=dict(scorer or {}),
            demonstrations=list(demonstrations),
            remarks=list(remarks),
        )
        self.keep(key, tables, scoring)
        return scoring

    def keep(self, key: str, tables: Mapping[str, ProbabilityTable], scoring: Scoring) -> None:
        """Write both tables of a key, each all or nothing, and the note of them last."""
        folder = self.root / key
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            for split in SPLITS:
                tables[split].write(self.path(key, split))
            atomic_write_text(self._note(key), json.dumps(asdict(scoring), indent=1))
