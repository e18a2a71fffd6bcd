"""Where a store keeps its files: a local folder, or any URL that fsspec knows."""

from __future__ import annotations

import importlib
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from dcs.errors import ConfigError, DCSError, MissingDependencyError
from dcs.io import atomic_write_bytes
from dcs.messages import named, redact
from dcs.scoring._claims import Claims

__all__ = ["Place", "open_place"]


class Place(Protocol):
    """Named byte strings. A name is ``folder/file``; writing is all or nothing."""

    url: str

    def folders(self) -> list[str]:
        """Return the names of the folders, sorted."""

    def files(self, folder: str) -> dict[str, int]:
        """Return the files of a folder with their sizes in bytes; nothing if there is none."""

    def read(self, name: str) -> bytes | None:
        """Return the content, or None if there is none of that name."""

    def write(self, name: str, data: bytes) -> None:
        """Write the content, all or nothing."""

    def delete(self, name: str) -> None:
        """Remove a file, if it is there, and its folder with the last file."""

    def modified(self, name: str) -> float:
        """Return when the file was written, in seconds since 1970; 0 if unknown."""

    def lock(self, name: str, *, wait: bool) -> Any:
        """Return a context manager giving whether this process alone now holds `name`."""


def open_place(url: str | os.PathLike[str]) -> Place:
    """Return the place that a path or URL means. Nothing is made yet.

    Raises
    ------
    ConfigError
        If the URL cannot be used.
    MissingDependencyError
        If the URL needs a package that is not installed.
    """
    name = os.fspath(url)
    if name.startswith("file://"):
        name = name.removeprefix("file://")
    return _Remote(name) if "://" in name else _Local(Path(name).expanduser())


class _Local:
    def __init__(self, root: Path) -> None:
        self.url = str(root)
        self._root = root
        if root.exists() and not root.is_dir():
            raise ConfigError(f"store {self.url!r} is a file; give a folder or a URL")

    def folders(self) -> list[str]:
        if not self._root.is_dir():
            return []
        return sorted(entry.name for entry in self._root.iterdir() if entry.is_dir())

    def files(self, folder: str) -> dict[str, int]:
        found = {}
        try:
            with os.scandir(self._root / folder) as entries:
                for entry in entries:
                    try:
                        found[entry.name] = entry.stat().st_size
                    except FileNotFoundError:
                        continue  # renamed or removed by another process since
        except FileNotFoundError:
            return {}
        return found

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        try:
            atomic_write_bytes(self._root / name, data)
        except OSError as error:
            raise DCSError(f"store {self.url!r}: cannot write {name}: {error.strerror}") from None

    def delete(self, name: str) -> None:
        path = self._root / name
        path.unlink(missing_ok=True)
        # Another process may be writing to the folder: it stays unless it is empty.
        if path.parent != self._root and path.parent.is_dir() and not any(path.parent.iterdir()):
            path.parent.rmdir()

    def modified(self, name: str) -> float:
        try:
            return (self._root / name).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    @contextmanager
    def lock(self, name: str, *, wait: bool) -> Iterator[bool]:
        if sys.platform == "win32":
            yield True
            return
        import fcntl

        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                # The kernel lets go of it when the process ends, however it ends.
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                except BlockingIOError:
                    yield False
                    return
                if not _is_same(handle, path):
                    continue  # removed by its last holder between the two calls
                try:
                    yield True
                finally:
                    path.unlink(missing_ok=True)
                return
            finally:
                os.close(handle)


def _is_same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


class _Remote:
    def __init__(self, url: str) -> None:
        try:
            fsspec = importlib.import_module("fsspec")
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise MissingDependencyError(f"store {url!r}: {error}") from None
        except ValueError as error:
            raise ConfigError(f"store {url!r} cannot be used: {error}") from None
        self.url = redact(url)  # It is only shown, in logs too.
        self._root = self._root.rstrip("/")
        self._claims = Claims(self)

    def folders(self) -> list[str]:
        return sorted(name for name, kind, _ in self._list(self._root) if kind == "directory")

    def files(self, folder: str) -> dict[str, int]:
        rows = self._list(f"{self._root}/{folder}")
        return {name: size for name, kind, size in rows if kind == "file"}

    def _list(self, path: str) -> list[tuple[str, str, int]]:
        with self._told("list its files"):
            try:
                self._fs.invalidate_cache()
                entries = self._fs.ls(path, detail=True)
            except FileNotFoundError:
                return []
        return [
            (entry["name"].rstrip("/").rpartition("/")[2], entry["type"], int(entry["size"] or 0))
            for entry in entries
        ]

    def read(self, name: str) -> bytes | None:
        with self._told(f"read {name}"):
            try:
                return bytes(self._fs.cat_file(f"{self._root}/{name}"))
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        # An object store shows an object whole or not at all; a file system does so on a move.
        temporary = f"{name}.{uuid.uuid4().hex}.part"
        self.put(temporary, data)
        with self._told(f"write {name}"):
            self._fs.mv(f"{self._root}/{temporary}", f"{self._root}/{name}")

    def put(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        with self._told(f"write {name}"):
            self._make_folder(path)
            self._fs.pipe_file(path, data)

    def create(self, name: str, data: bytes) -> bool:
        path = f"{self._root}/{name}"
        with self._told(f"write {name}"):
            self._make_folder(path)
            try:
                if self._is_object_store:
                    # One request with the condition that there is no such object.
                    self._fs.pipe_file(path, data, mode="create")
                else:
                    with self._fs.open(path, "xb") as file:
                        file.write(data)
            except FileExistsError:
                return False
            except (TypeError, ValueError) as error:
                raise NotImplementedError(str(error)) from None
        return True

    @property
    def _is_object_store(self) -> bool:
        return bool(getattr(self._fs, "async_impl", False))

    def _make_folder(self, path: str) -> None:
        # Object stores have none, and some would make a bucket of a misspelt address.
        if not self._is_object_store:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)

    def delete(self, name: str) -> None:
        with self._told(f"remove {name}"), suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._root}/{name}")

    def modified(self, name: str) -> float:
        try:
            return float(self._fs.modified(f"{self._root}/{name}").timestamp())
        except (NotImplementedError, FileNotFoundError):
            return 0.0

    def lock(self, name: str, *, wait: bool) -> AbstractContextManager[bool]:
        lock: AbstractContextManager[bool] = self._claims.hold(name, wait=wait)
        return lock

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Say in one line why the store did not do it."""
        try:
            yield
        except (NotImplementedError, DCSError):
            raise
        except Exception as error:
            # File systems and the network below them raise errors of many unrelated classes.
            raise DCSError(
                f"store {self.url!r}: cannot {what} ({named(error)}); check the "
                "address, the credentials and the network"
            ) from error
