"""The probability tables on disk: scored once, read for ever after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dcs.probabilities import ProbabilityTable
from dcs.prompting import SPLITS

__all__ = ["ProbabilityStore"]


@dataclass(frozen=True, slots=True)
class ProbabilityStore:
    """A folder of Parquet files, two for each key.

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

    def read(self, key: str) -> dict[str, ProbabilityTable] | None:
        """Return both tables of a key, or None unless both are there.

        Raises
        ------
        TableError
            A file is there and damaged; names it.
        """
        if not all(self.path(key, split).is_file() for split in SPLITS):
            return None
        return {split: ProbabilityTable.read(self.path(key, split)) for split in map(str, SPLITS)}

    def write(self, key: str, tables: Mapping[str, ProbabilityTable]) -> None:
        """Write both tables of a key, each all or nothing."""
        for split in SPLITS:
            tables[split].write(self.path(key, split))
