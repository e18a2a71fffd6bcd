"""Where the cells of a sweep are to be recorded, and which of them have arrived there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import threading
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from dcs.errors import TrackingError
from dcs.io import atomic_write_text, read_json
from dcs.messages import show
from tracking.records import KEY_PATTERN

__all__ = ["Destination", "DestinationInfo", "read_info"]

_INFO_FORMAT = "dcs-archive"
_INFO_VERSION = 1
#: By annotation; a field of another kind goes unchecked.
_INFO_TYPES: dict[Any, type | tuple[type, ...]] = {
    "str": str,
    "str | None": (str, type(None)),
    "str | int": (str, int),
    "int": int,
    "bool": bool,
    "dict[str, Any]": dict,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationInfo:
    """Where the cells of one sweep are recorded, and how; enough to do it again later.

    `tracking_uri` is None for the default store of the output folder and holds no password.
    `status` is the sweep's last known end, None while it runs or after a crash; `ended` says
    whether the store knows of it; `moved` that another destination has taken over.
    """

    tracking_uri: str | None
    experiment: str
    sweep_key: str
    sweep_params: dict[str, Any] = field(default_factory=dict)
    run_name: str | None = None
    source: str = "dcs"
    trials: str | int = "all"
    trace_points: int = 100
    figures: bool = True
    status: str | None = None
    ended: bool = False
    moved: bool = False

    @property
    def id(self) -> str:
        """Name of the destination's folder."""
        place = json.dumps([self.tracking_uri, self.experiment, self.sweep_key])
        return hashlib.sha256(place.encode()).hexdigest()[:16]

    def moved_to(self, tracking_uri: str | None) -> DestinationInfo:
        """Return the same sweep for another store, where its end is not known yet."""
        return replace(self, tracking_uri=tracking_uri, ended=False, moved=False)


@dataclass(slots=True)
class _Entry:
    digest: str
    recorded: str | None = None
    parent: str | None = None
    run: str | None = None
    drawn: str | None = None


class Destination:
    """One sweep in one store: which records go there and which have arrived.

    Parameters
    ----------
    folder : pathlib.Path
        Its folder in the archive.
    info : DestinationInfo
        What to write there once `acquire` was called.
    """

    def __init__(self, folder: Path, info: DestinationInfo) -> None:
        self.folder = folder
        self.info = info
        self._lock = threading.RLock()
        self._held: IO[str] | None = None
        self._entries: dict[str, _Entry] = {}
        self._load()

    @property
    def journal(self) -> Path:
        """The file of marks."""
        return self.folder / "journal.jsonl"

    @property
    def keys(self) -> list[str]:
        """Keys of all cells that belong here, in the order in which they came."""
        with self._lock:
            return list(self._entries)

    def digest(self, key: str) -> str | None:
        """Return the digest of the newest record of a cell that is to go here."""
        with self._lock:
            entry = self._entries.get(key)
            return None if entry is None else entry.digest

    def acquire(self) -> None:
        """Become the one process that records here; the system lets go when it dies.

        Raises
        ------
        dcs.errors.TrackingError
            When another process does.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        held = (self.folder / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held.seek(0)
            owner = held.read().strip() or "unknown"
            held.close()
            raise TrackingError(
                f"sweep {self.info.experiment!r} in {self.folder.parents[1]} is being recorded "
                f"by another process (id {owner}); wait for it or use another output folder"
            ) from None
        # For people alone, so a full disk does not matter; not through the buffer, which would
        # fail once more when the file is closed.
        with contextlib.suppress(OSError):
            os.ftruncate(held.fileno(), 0)
            os.write(held.fileno(), str(os.getpid()).encode())
        self._held = held
        self._load()
        self._mend()

    def release(self) -> None:
        """Let another process record here."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def __enter__(self) -> Destination:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def save(self, **changes: Any) -> None:
        """Change the description and write it."""
        self.info = replace(self.info, **changes)
        body = asdict(self.info) | {"format": _INFO_FORMAT, "version": _INFO_VERSION}
        path = self.folder / "sweep.json"
        try:
            atomic_write_text(path, json.dumps(body, indent=2, sort_keys=True))
        except OSError as error:
            raise TrackingError(
                f"{path}: cannot be written ({error.strerror or error}); make room and run the "
                "same command again"
            ) from error

    def queue(self, key: str, digest: str) -> bool:
        """Note that a record is to go here; False if it is known already, in this form."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry.digest == digest:
                return False
            self._note({"key": key, "digest": digest})
            return True

    def mark(self, key: str, digest: str, *, run_id: str, parent: str, drawn: bool = True) -> None:
        """Note that a record has arrived as the run `run_id`, with figures or without need."""
        line = {"key": key, "recorded": digest, "run": run_id, "parent": parent}
        with self._lock:
            self._note(line | {"drawn": digest if drawn else ""})

    def mark_drawn(self, key: str, digest: str) -> None:
        """Note that the run of a record has its figures."""
        with self._lock:
            self._note({"key": key, "drawn": digest})

    def undrawn(self) -> dict[str, str]:
        """Return the runs that are still to get their figures, by cell key."""
        with self._lock:
            return {
                key: entry.run
                for key, entry in self._entries.items()
                if entry.run and entry.recorded == entry.digest != entry.drawn
            }

    def is_pictured(self, parent: str) -> bool:
        """Whether the sweep's run `parent` has figures of all that is recorded now."""
        try:
            return (self.folder / "pictured").read_text("utf-8") == self._picture_of(parent)
        except (OSError, ValueError):
            return False

    def mark_pictured(self, parent: str) -> None:
        """Note that the sweep's run `parent` has figures of all that is recorded now."""
        with contextlib.suppress(OSError):
            # Else they are drawn once more.
            atomic_write_text(self.folder / "pictured", self._picture_of(parent))

    def _picture_of(self, parent: str) -> str:
        with self._lock:
            cells = sorted((key, entry.digest) for key, entry in self._entries.items())
        return hashlib.sha256(json.dumps([parent, cells]).encode()).hexdigest()

    def pending(self, parent: str | None = None) -> list[str]:
        """Return the keys that have not arrived.

        Parameters
        ----------
        parent : str, optional
            Run id of the sweep in the store. Marks made under another one are void: that store
            was deleted or replaced.
        """
        with self._lock:
            return [
                key
                for key, entry in self._entries.items()
                if entry.recorded != entry.digest
                or (parent is not None and entry.parent != parent)
            ]

    def _load(self) -> None:
        self._entries = {}
        if not self.journal.exists():
            return
        for line in self.journal.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                self._apply(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # Half a line of a crash: that cell counts as not arrived.

    def _apply(self, line: dict[str, str]) -> None:
        key = line["key"]
        if not KEY_PATTERN.fullmatch(key):
            raise ValueError("not the name of a file of the archive")
        if "digest" in line:
            entry = self._entries.setdefault(key, _Entry(line["digest"]))
            entry.digest = line["digest"]
        elif "recorded" in line:
            entry = self._entries.setdefault(key, _Entry(line["recorded"]))
            entry.recorded, entry.parent = line["recorded"], line["parent"]
            # Earlier versions drew nothing, and what they recorded is done with.
            entry.run, entry.drawn = line.get("run"), line.get("drawn", line["recorded"])
        else:
            self._entries[key].drawn = line["drawn"]

    def _note(self, line: dict[str, str]) -> None:
        self._apply(line)
        self._append(line)

    def _append(self, line: dict[str, str]) -> None:
        try:
            with self.journal.open("ab", buffering=0) as journal:
                end = journal.seek(0, os.SEEK_END)
                try:
                    data = f"{json.dumps(line)}\n".encode()
                    # A nearly full disk takes a part and says so without an error.
                    if journal.write(data) != len(data):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(journal.fileno())
                except OSError:
                    journal.truncate(end)
                    raise
        except OSError as error:
            raise TrackingError(
                f"{self.journal}: cannot be written ({error.strerror or error}); make room and "
                "run the same command again"
            ) from error

    def _mend(self) -> None:
        """End a half-written last line, so that the next one starts on its own."""
        if self.journal.exists():
            data = self.journal.read_bytes()
            if data and not data.endswith(b"\n"):
                with self.journal.open("ab") as journal:
                    journal.write(b"\n")


def read_info(path: Path) -> DestinationInfo:
    """Read the description of a destination, or say which file is damaged."""
    try:
        body = read_json(path, error=TrackingError)
        if body.pop("format") != _INFO_FORMAT or body.pop("version") != _INFO_VERSION:
            raise ValueError("another format or version")
        info = DestinationInfo(**body)
        for item in fields(info):
            value = getattr(info, item.name)
            if not isinstance(value, _INFO_TYPES.get(item.type, object)):
                raise ValueError(f"{item.name} is {show(value)}")
        return info
    except (ValueError, KeyError, TypeError, AttributeError, TrackingError) as error:
        raise TrackingError(
            f"{path}: not a whole description of a sweep ({error}); delete its folder and run "
            "the sweep again to record it"
        ) from error
