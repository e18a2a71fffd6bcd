"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary sibling of `path` to write to; it becomes `path` on success.

    The data is flushed to disk before the rename, so that after a crash `path` holds either the
    old content or the whole new one.

    Parameters
    ----------
    path : path-like
        The file to be made or replaced. Missing parent folders are made.

    Yields
    ------
    pathlib.Path
        An empty file in the same folder.

    Raises
    ------
    OSError
        The system refuses, or `path` is a device, a pipe or a socket.
    """
    target = Path(path)
    _refuse_special(target)
    made = [folder for folder in target.parents if not folder.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    # The name of the file is not repeated whole: with an addition it may be too long.
    handle, name = tempfile.mkstemp(
        dir=target.parent, prefix=f".{target.name[:40]}.", suffix=".part"
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _flush(temporary)
        # mkstemp makes private files; a result should be as readable as any other new file.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
        # A folder's entry lies in the folder above, so new folders are flushed there.
        for folder in (target.parent, *(folder.parent for folder in made)):
            _flush(folder)
    finally:
        temporary.unlink(missing_ok=True)


def _refuse_special(target: Path) -> None:
    """Refuse to put a file in the place of a device: root could replace /dev/null for all."""
    try:
        mode = target.lstat().st_mode
    except (OSError, ValueError):
        return  # Not there yet, or not to be had: making the file will tell.
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "not a regular file; give the path of a file", str(target))


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path`, all or nothing."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def atomic_write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` as UTF-8, all or nothing."""
    atomic_write_bytes(path, text.encode("utf-8"))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot flush a folder; they keep no entries back either.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(handle)


def _umask() -> int:
    # The mask can only be read by setting it, which would race with other threads.
    for line in Path("/proc/self/status").read_text().splitlines() if _HAS_PROC else ():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


_HAS_PROC = Path("/proc/self/status").exists()
