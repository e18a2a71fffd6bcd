"""Studies written down in a database or journal, where people look at them and runs go on.

What is suggested never depends on what is written: `run_trials` asks an
Optuna study in memory, and this is its ledger. So several cells may write to one storage, a trial
that an earlier run finished is taken from there, and a storage that fails costs no result.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from dcs.errors import ConfigError, DCSError, MissingDependencyError
from dcs.messages import first_line
from tracking.environment import source_digest
from workflows.config.sweep import SweepConfig
from workflows.tuning.study import Asked, Outcome, Verdict

__all__ = ["STORAGE_VARIABLE", "StudyLedger", "StudyStorage", "StudyStorageError", "storage_of"]

STORAGE_VARIABLE = "DCS_OPTUNA_STORAGE"
_DATABASES = ("postgresql", "mysql", "mariadb")
#: A trial that was under way whenever its process died is not tried for ever.
_ATTEMPTS = 10
#: A storage that does not answer is left alone for so long.
_PAUSE_SECONDS = 30.0
_CONNECT_SECONDS = 10
_NUMBER, _CODE, _VERDICT, _REPEATS = "number", "code", "verdict", "repeats"

_logger = logging.getLogger(__name__)


class StudyStorageError(DCSError):
    """The storage of the Optuna studies cannot be used."""


@dataclass(frozen=True, slots=True)
class StudyStorage:
    """Where studies are written down; never shows its password.

    Parameters
    ----------
    place : str
        URL of a PostgreSQL or MySQL database, or the path of a journal file.

    Raises
    ------
    ConfigError
        It is neither.
    """

    place: str = field(repr=False)

    def __post_init__(self) -> None:
        kind = self._kind
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
        try:
            urlsplit(self.place)
        except ValueError:
            # The reason would quote a part of the password.
            raise ConfigError(
                "optuna_storage: not a URL; write [..] around an IPv6 address, and the special "
                "characters of a password as %2F and so on"
            ) from None
        if not self.place.strip():
            raise ConfigError("optuna_storage: is empty; leave it out to keep studies in memory")

    @property
    def _kind(self) -> str:
        return self.place.partition("://")[0].partition("+")[0] if "://" in self.place else ""

    @property
    def label(self) -> str:
        """The place without user and password."""
        if not self._kind:
            return self.place
        place = self.place.partition("://")[2].rpartition("@")[2]
        return f"{self._kind}://{re.split('[/?#]', place)[0]}"

    def check(self) -> None:
        """Reach the storage and make its tables, before anything is computed.

        Raises
        ------
        StudyStorageError
            It cannot be reached, or is not to be written to.
        MissingDependencyError
            The database's driver is not installed.
        """
        with self._opened(first=True) as storage:
            optuna.get_all_study_names(storage)

    @contextmanager
    def ledger(
        self, name: str, *, notes: Mapping[str, Any] | None = None
    ) -> Iterator[StudyLedger]:
        """Open the study of one cell, a new one or that of an earlier run.

        Parameters
        ----------
        name : str
            Of the study: the key of the cell.
        notes : mapping, optional
            Kept beside the study, for people.

        Raises
        ------
        StudyStorageError
            The storage cannot be used.
        """
        with self._opened(first=not self._kind) as storage:
            with self._told():
                ledger = StudyLedger(storage, name, notes or {}, hide=self._hidden)
            yield ledger

    @contextmanager
    def _opened(self, *, first: bool) -> Iterator[optuna.storages.BaseStorage]:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with self._told():
            storage = self._database(first) if self._kind else self._journal()
        try:
            yield storage
        finally:
            if isinstance(storage, optuna.storages.RDBStorage):
                storage.remove_session()
                storage.engine.dispose()

    def _database(self, first: bool) -> optuna.storages.BaseStorage:
        options = {"connect_timeout": _CONNECT_SECONDS}
        return optuna.storages.RDBStorage(
            self.place,
            # One process, one writer: more than a connection is of no use.
            engine_kwargs={"pool_pre_ping": True, "pool_size": 1, "connect_args": options},
            # Workers that all make the tables at once get into each other's way.
            skip_table_creation=not first,
            skip_compatibility_check=not first,
        )

    def _journal(self) -> optuna.storages.BaseStorage:
        from optuna.storages.journal import JournalFileBackend

        path = Path(self.place).expanduser()
        if path.exists() and not path.is_file():  # Reading a pipe would never end.
            raise StudyStorageError(f"optuna_storage: {path} is not a regular file; name another")
        path.parent.mkdir(parents=True, exist_ok=True)
        return optuna.storages.JournalStorage(JournalFileBackend(str(path)))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say what is wrong without the URL, which may hold a password."""
        try:
            yield
        except DCSError:
            raise
        except ImportError as error:
            name = error.name or "the database's driver"
            raise MissingDependencyError(
                f"optuna_storage: {name} is not installed; run: pip install 'dcs-debias[cluster]'"
            ) from None
        except Exception as error:
            # Whatever SQLAlchemy, the driver or the file system raises: it is passed on in our
            # words and without its cause, which may quote the URL.
            raise StudyStorageError(
                f"optuna_storage: {self.label} cannot be used: {self._hidden(_reason(error))}; "
                "see that it is reachable from every node, or leave optuna_storage out"
            ) from None

    def _hidden(self, text: str) -> str:
        secrets = {self.place}
        if self._kind:
            # As SQLAlchemy takes an address apart: a password may hold a slash.
            user = self.place.partition("://")[2].rpartition("@")[0]
            password = user.partition(":")[2]
            secrets |= {password, unquote(password)} if password else set()
            secrets.add(urlsplit(self.place).query)
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


def storage_of(config: SweepConfig) -> StudyStorage | None:
    """Return where the studies of a sweep are written down, None for nowhere.

    What the configuration says wins over the environment variable `DCS_OPTUNA_STORAGE`.
    """
    if config.optuna_storage is not None:
        return StudyStorage(config.optuna_storage.get_secret_value())
    place = os.environ.get(STORAGE_VARIABLE)
    return StudyStorage(place) if place else None


class StudyLedger:
    """The study of one cell in a storage; one process writes to it at a time.

    Parameters
    ----------
    storage : optuna.storages.BaseStorage
        An open storage.
    name : str
        Of the study.
    notes : mapping
        Kept beside it.
    hide : callable
        Takes passwords out of what is logged.
    """

    def __init__(
        self,
        storage: optuna.storages.BaseStorage,
        name: str,
        notes: Mapping[str, Any],
        *,
        hide: Callable[[str], str] = str,
    ) -> None:
        self._hide = hide
        self._study = optuna.create_study(
            storage=storage,
            study_name=name,
            direction="maximize",
            sampler=optuna.samplers.RandomSampler(),
            load_if_exists=True,
        )
        for key, value in notes.items():
            if self._study.user_attrs.get(key) != value:
                self._study.set_user_attr(key, value)
        # Another version may judge the same parameters otherwise.
        self._code = source_digest()
        self._finished: dict[int, FrozenTrial] = {}
        self._unfinished: Counter[int] = Counter()
        self._running: dict[int, optuna.Trial] = {}
        self._silent_until = 0.0
        self._read()

    def _read(self) -> None:
        for trial in self._study.get_trials(deepcopy=False):
            number = trial.user_attrs.get(_NUMBER)
            if trial.state is TrialState.RUNNING:
                # Its process was killed: this one is the only one that writes here now.
                self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            if not isinstance(number, int):
                continue
            if trial.state in (TrialState.RUNNING, TrialState.FAIL):
                self._unfinished[number] += 1
            elif trial.state is TrialState.COMPLETE and trial.user_attrs.get(_CODE) == self._code:
                self._finished.setdefault(number, trial)

    def earlier(self, number: int, params: Mapping[str, Any]) -> tuple[Verdict[Any], float] | None:
        """Return verdict and seconds of a trial that an earlier run finished, None if none did."""
        trial = self._finished.get(number)
        if trial is None or trial.params != dict(params) or _VERDICT not in trial.user_attrs:
            return None
        kept = json.loads(trial.user_attrs[_VERDICT])
        return Verdict(float(trial.values[0]), kept["metrics"]), float(kept["seconds"])

    def begin(self, asked: Asked[Any]) -> None:
        """Write down a trial that is handed out; one that was killed is put in line again.

        Raises
        ------
        StudyStorageError
            Its process died too often.
        """
        if self._unfinished[asked.number] >= _ATTEMPTS:
            raise StudyStorageError(
                f"trial {asked.number} was under way {_ATTEMPTS} times when its process died "
                f"(parameters {asked.params}); to try it again, delete the study "
                f"{self._study.study_name} from optuna_storage"
            )

        def write() -> None:
            self._study.enqueue_trial(
                asked.params, user_attrs={_NUMBER: asked.number, _CODE: self._code}
            )
            while True:
                trial = self._study.ask(asked.distributions)
                if trial.user_attrs.get(_NUMBER) == asked.number:
                    break
                # Put in line by a run that was killed before it took it out.
                self._study.tell(trial, state=TrialState.FAIL)
            self._running[asked.number] = trial

        self._forgiving(write)

    def end(self, outcome: Outcome[Any, Any]) -> None:
        """Write down how a trial did."""
        asked, verdict = outcome.asked, outcome.verdict
        if self.earlier(asked.number, asked.params) is not None:
            return
        text = json.dumps({"metrics": verdict.metrics, "seconds": outcome.seconds})
        running = self._running.pop(asked.number, None)

        def write() -> None:
            if running is not None:
                running.set_user_attr(_VERDICT, text)
                self._study.tell(running, verdict.value, skip_if_finished=True)
                return
            # Nothing was judged, or the storage did not answer when it began.
            attributes = {_NUMBER: asked.number, _CODE: self._code, _VERDICT: text}
            if outcome.repeats is not None:
                attributes[_REPEATS] = outcome.repeats
            self._study.add_trial(
                create_trial(
                    params=asked.params,
                    distributions=asked.distributions,
                    value=verdict.value,
                    user_attrs=attributes,
                )
            )

        self._forgiving(write)

    def _forgiving(self, write: Callable[[], None]) -> None:
        """Go on without a storage that fails in the middle: it decides no result."""
        if time.monotonic() < self._silent_until:
            return
        try:
            write()
        except Exception as error:
            self._silent_until = time.monotonic() + _PAUSE_SECONDS
            _logger.warning("a trial was not written down: %s", self._hide(_reason(error)))


def _reason(error: BaseException) -> str:
    """Return the innermost cause, which names the host and what it said."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)
