"""Where Optuna's studies are kept: a journal file or a database, its password never shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from dcs.errors import ConfigError, DCSError, MissingDependencyError, reason, redact

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from sqlalchemy.engine import URL

STORAGE_VARIABLE = "DCS_OPTUNA_STORAGE"
_DATABASES = ("postgresql", "mysql", "mariadb")
_CONNECT_SECONDS = 10


class StudyStorageError(DCSError):
    """The storage of the Optuna studies cannot be used."""


@dataclass(frozen=True, slots=True)
class StudyStorage:
    """The storage of Optuna's studies, one study per cell.

    Parameters
    ----------
    address : str
        URL of a PostgreSQL or MySQL database, or the path of a journal file.

    Raises
    ------
    ConfigError
        It is neither.
    """

    address: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.address.strip():
            raise ConfigError("optuna_storage: is empty; leave it out to keep studies in memory")
        url = self.url
        kind = "" if url is None else url.get_backend_name()
        if kind == "sqlite":
            raise ConfigError(
                "optuna_storage: SQLite locks and loses trials when several cells write to it; "
                "give the path of a journal file, or a postgresql:// URL"
            )
        if kind not in ("", *_DATABASES):
            raise ConfigError(
                f"optuna_storage: {kind}:// is not known; allowed are the path of a journal file, "
                f"and {', '.join(f'{name}://' for name in _DATABASES)}"
            )

    @classmethod
    def chosen(cls, configured: SecretStr | None) -> StudyStorage | None:
        """Return what a configuration names, or else the environment; None for neither."""
        address = configured.get_secret_value() if configured else os.environ.get(STORAGE_VARIABLE)
        return cls(address) if address else None

    @property
    def url(self) -> URL | None:
        """The address of a database; None for a journal file."""
        if "://" not in self.address:
            return None
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            return make_url(self.address)
        except (ArgumentError, ValueError):
            # The reason would quote a part of the password.
            raise ConfigError(
                "optuna_storage: not a URL; write the special characters of a password as %2F "
                "and so on"
            ) from None

    @property
    def label(self) -> str:
        """The address without password and options."""
        url = self.url
        if url is None:
            return self.address
        return url.set(query={}).render_as_string(hide_password=True)

    def hide(self, text: str) -> str:
        """Return a text without the password, should it be there."""
        url = self.url
        text = redact(text.replace(self.address, self.label))
        return text if url is None or not url.password else text.replace(url.password, "***")

    def check(self) -> None:
        """Reach the storage and make its tables, before anything is computed.

        Raises
        ------
        StudyStorageError
            It cannot be reached, or is not to be written to.
        MissingDependencyError
            The database's driver is not installed.
        """
        import optuna

        with self.opened(first=True) as storage:
            optuna.get_all_study_names(storage)

    @contextmanager
    def opened(self, *, first: bool = False) -> Iterator[BaseStorage]:
        """Give Optuna's storage, and say of any failure in the block where and why.

        Parameters
        ----------
        first : bool
            Whether the tables of a database may have to be made. Workers that all make them at
            once get into each other's way.

        Raises
        ------
        StudyStorageError, MissingDependencyError
            As :meth:`check` does.
        """
        from optuna.exceptions import StorageInternalError
        from optuna.storages import RDBStorage
        from sqlalchemy.exc import SQLAlchemyError

        try:
            opened = self._journal() if self.url is None else self._database(first)
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"optuna_storage: {error.name} is not installed; run: pip install "
                "'dcs-debias[cluster]'"
            ) from None
        except Exception as error:
            # Whatever SQLAlchemy, the driver or the file system raises.
            raise self._failure(error) from None
        try:
            yield opened
        except (StorageInternalError, SQLAlchemyError, OSError) as error:
            raise self._failure(error) from None
        finally:
            if isinstance(opened, RDBStorage):
                opened.remove_session()
                opened.engine.dispose()

    def _database(self, first: bool) -> BaseStorage:
        from optuna.storages import RDBStorage

        return RDBStorage(
            self.address,
            # One process, one writer: more than a connection is of no use.
            engine_kwargs={
                "pool_pre_ping": True,
                "pool_size": 1,
                "connect_args": {"connect_timeout": _CONNECT_SECONDS},
            },
            skip_table_creation=not first,
            skip_compatibility_check=not first,
        )

    def _journal(self) -> BaseStorage:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        path = Path(self.address).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(path)))

    def _failure(self, error: BaseException) -> StudyStorageError:
        """Say what is wrong without the cause, which may quote the password."""
        while error.__cause__ is not None:
            error = error.__cause__  # The innermost one names the host and what it said.
        return StudyStorageError(
            f"optuna_storage: {self.label} cannot be used: {self.hide(reason(error))}; "
            "see that it is reachable from every node, or leave optuna_storage out"
        )
