"""Stored studies: a journal for each in the output folder, or a database.

A journal is kept as long as the record of its cell.
"""

from __future__ import annotations

import fcntl
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Literal

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from dcs.errors import DCSError, reason, redact
from dcs.io import atomic_path, naming
from dcs_tracking.environment import own_digest
from dcs_workflows.plan import MEMORY

#: Objectives of every study, with their directions.
OBJECTIVES: Final[dict[str, Literal["maximize", "minimize"]]] = {
    "accuracy": "maximize",
    "cobias": "minimize",
    "moves": "minimize",
}

#: User attribute of a study: hash of the sources.
_CODE: Final = "code"
#: Seconds to wait for another process to end a study: also for one that is about to die.
_WAIT_SECONDS: Final = 60.0


class StudyStorageError(DCSError):
    """Raised if the storage of a study cannot be used now; later it may."""


@dataclass(frozen=True, slots=True)
class StoredStudy:
    """A stored study; one process at a time runs it.

    Attributes
    ----------
    name : str
        Name of the study.
    file : pathlib.Path
        Its journal, or a file to lock if it is in a database.
    address : str or None
        URL of a database; None for a journal.
    """

    name: str
    file: Path
    address: str | None = field(default=None, repr=False)

    @property
    def exists(self) -> bool:
        """Whether the study is in its storage."""
        if self.address is None:
            return self.file.is_file() and self.file.stat().st_size > 0
        with self.storage_errors():
            return self.name in optuna.get_all_study_names(self.storage)

    @contextmanager
    def opened(self) -> Iterator[optuna.Study]:
        """Open the study and lock it; one of other sources, which may judge differently, is new.

        Raises
        ------
        StudyStorageError
            If another process holds the lock, or the storage cannot be reached.
        DCSError
            If the journal is damaged.
        """
        with ExitStack() as stack:
            with self.storage_errors():
                stack.enter_context(self._locked())
                place: dict[str, Any] = {"storage": self.storage, "study_name": self.name}
                new = partial(optuna.create_study, **place, directions=[*OBJECTIVES.values()])
                study = new(load_if_exists=True)
                if study.user_attrs.get(_CODE, own_digest()) != own_digest():
                    optuna.delete_study(**place)
                    study = new()
                study.set_user_attr(_CODE, own_digest())
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ExperimentalWarning)
                    study.set_metric_names([*OBJECTIVES])
            yield study

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the study, which the system releases when the process ends."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + _WAIT_SECONDS
        with naming(self.file), self.file.open("ab+") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise StudyStorageError(
                            f"study {self.name!r}: in use by another process, which holds a lock "
                            f"on {self.file}; run the command again when that has ended"
                        ) from None
                    time.sleep(0.1)
            # A full disk or a kill may have cut the last line, which nobody could read then.
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            yield

    def remove(self) -> None:
        """Delete the study, if it exists."""
        if self.address is not None and self.exists:
            with self.storage_errors():
                optuna.delete_study(study_name=self.name, storage=self.storage)
        self.file.unlink(missing_ok=True)

    @property
    def storage(self) -> BaseStorage:
        """The storage, as Optuna uses it."""
        if self.address is not None:
            return _open_database(self.address)
        # Other processes are locked out for longer than a line. Optuna's own lock stays when a
        # process is killed, and the next one waits for half a minute.
        own: Any = threading.Lock()
        try:
            return JournalStorage(JournalFileBackend(str(self.file), lock_obj=own))
        except OSError:
            raise
        except Exception as error:  # Optuna raises various types.
            raise DCSError(
                f"{self.file}: damaged Optuna journal ({reason(error)}); delete it to run the "
                "study of its cell again"
            ) from None

    @contextmanager
    def storage_errors(self) -> Iterator[None]:
        """Convert failures of a storage to errors of one line, without the password of a URL."""
        try:
            yield
        except (StorageInternalError, _sql_error(), OSError, ValueError, ImportError) as error:
            where, advice = str(self.file), "make sure that it can be written and has room"
            if self.address is not None:
                where = f"optuna_storage {redact(self.address)}"
                advice = "make sure that it is reachable from every node, or remove optuna_storage"
            raise StudyStorageError(f"{where}: {redact(reason(error))}; {advice}") from None


@dataclass(frozen=True, slots=True)
class Studies:
    """The stored studies of an output folder.

    Attributes
    ----------
    output : pathlib.Path
        The output folder.
    storage : str or None
        URL of a database, or `MEMORY`, which stores none; None for journals in the folder.
    """

    output: Path
    storage: str | None = field(default=None, repr=False)

    def of(self, key: str, label: str) -> StoredStudy | None:
        """Return the study of a cell, which may not exist yet; None if studies are not stored."""
        if self.storage == MEMORY:
            return None
        kind = "journal" if self.storage is None else "lock"
        file = self.output / "studies" / f"{key}.{kind}"
        return StoredStudy(f"{label} {key[:8]}", file, self.storage)

    def check(self, *, connect: bool = False) -> None:
        """Raise StudyStorageError if a database is unknown or, if tried, cannot be reached."""
        if self.storage is None or self.storage == MEMORY:
            return
        stored = StoredStudy("", self.output, self.storage)
        with stored.storage_errors():
            from sqlalchemy.engine import make_url

            make_url(self.storage).get_dialect().import_dbapi()
            if connect:
                _ = stored.storage


def _sql_error() -> type[Exception]:
    """Return the class of SQLAlchemy's errors, which journals do without."""
    from sqlalchemy.exc import SQLAlchemyError

    return SQLAlchemyError


@lru_cache(maxsize=4)
def _open_database(address: str) -> BaseStorage:
    """Open a database; each process opens it once."""
    from sqlalchemy.pool import NullPool

    # A study uses the database seldom: no connection stays open between.
    return RDBStorage(address, engine_kwargs={"poolclass": NullPool})


def collect_studies(studies: Iterable[StoredStudy], path: Path) -> int:
    """Write the studies that exist to one journal, for optuna-dashboard; return their number."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found = [stored for stored in studies if stored.exists]
    with atomic_path(path) as file:
        storage = StoredStudy("", file).storage
        for stored in found:
            read = InMemoryStorage()
            copy = partial(optuna.copy_study, from_study_name=stored.name)
            with stored.storage_errors():
                copy(from_storage=stored.storage, to_storage=read)
            # Not in the same step: a full disk is no failure of the study's storage.
            copy(from_storage=read, to_storage=storage)
    return len(found)
