"""Where Optuna's studies are kept: a journal file or a database, its password never shown."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import SecretStr

from dcs.errors import ConfigError
from dcs.messages import redact

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

__all__ = ["STORAGE_VARIABLE", "StudyStorage"]

STORAGE_VARIABLE = "DCS_OPTUNA_STORAGE"
_DATABASES = ("postgresql", "mysql", "mariadb")


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
