"""What to do when a model or dataset cannot be had from the hub."""

from __future__ import annotations

import codecs
import errno
import hashlib
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcs.errors import DCSError
from dcs.messages import escaped, one_line, reason, show

if TYPE_CHECKING:
    import yaml

__all__ = [
    "content_key",
    "decoded",
    "existing_file",
    "hub_advice",
    "memory_bound",
    "parse_json",
    "parse_yaml",
    "read_json",
    "read_text",
    "read_yaml",
    "text_file",
]


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


def content_key(content: Mapping[str, Any]) -> str:
    """Return the hash of the canonical JSON of `content`: 32 hexadecimal digits.

    Parameters
    ----------
    content : mapping
        Plain JSON values.

    Returns
    -------
    str
        The same on every machine.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


#: Largest file of settings: a mistaken path is said at once instead of parsed for minutes.
YAML_BYTES = 2**20

#: Largest file of JSON: a scheme of 1,000 classes with a whole calibration matrix takes 25 MB.
JSON_BYTES = 2**28

#: Values that a YAML file may stand for once its aliases are written out.
_YAML_VALUES = 100_000

_LARGEST = 64 * 2**30

_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


@cache
def memory_bound() -> int:
    """Return how many bytes one table may take: a quarter of the machine's memory, at most 64 GiB.

    A few compressed bytes can stand for any number of rows. While it is checked, a table is in
    memory up to three times.
    """
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return _LARGEST
    return min(_LARGEST, max(2**30, physical // 4))


def existing_file(path: str | os.PathLike[str], *, error: type[DCSError]) -> Path:
    """Return `path` if it is a regular file.

    Raises
    ------
    DCSError
        The class given; if the file is missing, a folder, a device or pipe (reading one could
        wait for ever), or has a name that the system refuses.
    """
    target = Path(path)
    name = escaped(target)
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        raise error(f"{name}: no such file; check the path") from None
    except (OSError, ValueError) as problem:
        raise error(f"{name}: cannot be read: {reason(problem)}") from None
    if stat.S_ISDIR(mode):
        raise error(f"{name}: is a folder; give the path of one file")
    if not stat.S_ISREG(mode):
        raise error(f"{name}: is not a regular file; give the path of a file")
    return target


def read_text(
    path: str | os.PathLike[str], *, error: type[DCSError], limit: int = JSON_BYTES
) -> str:
    """Return the content of a UTF-8 file of at most `limit` bytes, without a byte order mark.

    Raises
    ------
    DCSError
        The class given; if it is not such a file.
    """
    target = existing_file(path, error=error)
    name = escaped(target)
    try:
        with target.open("rb") as file:
            # What is too large is not read at all; a file may also grow meanwhile.
            too_large = os.fstat(file.fileno()).st_size > limit
            data = b"" if too_large else file.read(limit + 1)
    except OSError as problem:
        raise error(f"{name}: cannot be read: {reason(problem)}") from None
    if too_large or len(data) > limit:
        raise error(
            f"{name}: is larger than {limit / 2**20:.0f} MiB, which no file of this kind is; "
            "check the path"
        )
    return decoded(data, name, error=error)


def text_file(path: str | os.PathLike[str], *, error: type[DCSError]) -> Path:
    """Return `path` if it is a regular file that can be read as lines of UTF-8.

    Numbers read from text take several times its size, so a sixteenth of the memory is allowed.

    Raises
    ------
    DCSError
        The class given; if it is another kind of file, begins as UTF-16 or UTF-32, or is too
        large. Bytes further on are not looked at.
    """
    target = existing_file(path, error=error)
    name = escaped(target)
    try:
        size = target.stat().st_size
        with target.open("rb") as file:
            head = file.read(4)
    except OSError as problem:
        raise error(f"{name}: cannot be read: {reason(problem)}") from None
    _refuse_marked(head, name, error=error)
    bound = memory_bound() // 4
    if size > bound:
        raise error(
            f"{name}: {size / 2**30:.1f} GiB of text; at most {bound / 2**30:.1f} GiB are read on "
            "this machine; split the file, or make it Parquet"
        )
    return target


def decoded(data: bytes, name: str, *, error: type[DCSError]) -> str:
    """Return UTF-8 text without a byte order mark, or say what the bytes look like instead."""
    _refuse_marked(data, name, error=error)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(
            f"{name}: not UTF-8 text (byte 0x{data[problem.start]:02x} at position "
            f"{problem.start}); save it as UTF-8"
        ) from None


def _refuse_marked(data: bytes, name: str, *, error: type[DCSError]) -> None:
    for mark, encoding in _MARKS.items():
        if data.startswith(mark):
            raise error(f"{name}: is {encoding} text, not UTF-8; save it as UTF-8")


def read_json(path: str | os.PathLike[str], *, error: type[DCSError]) -> Any:
    """Return the content of a JSON file; see :func:`read_text` and :func:`parse_json`."""
    return parse_json(read_text(path, error=error), source=escaped(path), error=error)


def parse_json(text: str, *, source: str, error: type[DCSError], finite: bool = True) -> Any:
    """Return what JSON text stands for: standard JSON, finite numbers, text that can be written.

    Parameters
    ----------
    text : str
        The text.
    source : str
        What messages call it.
    error : type
        The class to raise.
    finite : bool
        Refuse NaN and infinities; other programs write them into fields that may not matter.

    Raises
    ------
    DCSError
        The class given, otherwise; names `source` and the place.
    """
    try:
        if finite:
            content = json.loads(text, parse_constant=_refused, parse_float=_finite)
        else:
            content = json.loads(text)
        if "\\ud" in text or "\\uD" in text:
            # Half of a surrogate pair passes the parser, and fails wherever it is written.
            json.dumps(content, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise error(f"{source}: nested too deeply; is it the right file?") from None
    except UnicodeEncodeError:
        raise error(f"{source}: holds half a surrogate pair, not valid Unicode") from None
    except ValueError as problem:
        raise error(f"{source}: not JSON ({reason(problem)})") from None
    return content


def read_yaml(path: str | os.PathLike[str], *, error: type[DCSError]) -> Any:
    """Return the content of a YAML file; see :func:`read_text` and :func:`parse_yaml`."""
    text = read_text(path, error=error, limit=YAML_BYTES)
    return parse_yaml(text, source=escaped(path), error=error)


def parse_yaml(text: str, *, source: str, error: type[DCSError]) -> Any:
    """Return the plain values that YAML text stands for.

    Refused besides what is not YAML: a key given twice, where the first would silently be
    ignored; aliases that contain themselves or stand for too much; whatever is no plain value.

    Raises
    ------
    DCSError
        The class given; names `source` and, where known, the line.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check_node(node)
            content = loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError:
        raise error(f"{source}: nested too deeply; is it the right file?") from None
    except yaml.YAMLError as problem:
        raise error(f"{source}: not valid YAML: {escaped(one_line(problem))}") from None
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as problem:
        # What PyYAML raises for a value that does not fit its tag, such as the date 2026-13-41.
        raise error(f"{source}: a value does not fit its type: {reason(problem)}") from None
    return content


def _check_node(root: yaml.Node) -> None:
    """Refuse repeated keys, text that cannot be written, and aliases that stand for too much."""
    import yaml

    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        known = sizes.get(id(node))
        if known is not None:
            return known
        if id(node) in open_nodes:
            raise yaml.MarkedYAMLError(problem="contains itself", problem_mark=node.start_mark)
        open_nodes.add(id(node))
        total = 1
        if isinstance(node, yaml.ScalarNode):
            _check_text(node)
        elif isinstance(node, yaml.MappingNode):
            _check_keys(node)
            total += sum(size(part) for pair in node.value for part in pair)
        elif isinstance(node, yaml.SequenceNode):
            total += sum(map(size, node.value))
        open_nodes.remove(id(node))
        if total > _YAML_VALUES:
            raise yaml.MarkedYAMLError(
                problem=f"stands for more than {_YAML_VALUES} values",
                problem_mark=node.start_mark,
            )
        sizes[id(node)] = total
        return total

    size(root)


def _check_keys(node: yaml.MappingNode) -> None:
    import yaml

    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if (key.tag, key.value) in seen:
            raise yaml.MarkedYAMLError(
                problem=f"key {show(key.value)} is given twice", problem_mark=key.start_mark
            )
        seen.add((key.tag, key.value))


def _check_text(node: yaml.ScalarNode) -> None:
    """Refuse text that no file could be named by, or that could not be written."""
    import yaml

    try:
        node.value.encode("utf-8")
    except UnicodeEncodeError:
        text: str | None = "half a surrogate pair, not valid Unicode"
    else:
        text = "a NUL character" if "\0" in node.value else None
    if text is not None:
        raise yaml.MarkedYAMLError(problem=f"holds {text}", problem_mark=node.start_mark)


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{show(text, 30)} is too large a number")
    return value


#: Signs in an error or its causes, and what to do; the first that fits is given.
_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("offlinemode", "hf_hub_offline", "offline mode"),
        "HF_HUB_OFFLINE is set and it has not been fetched before: unset it for one run where "
        "there is a network",
    ),
    (
        ("gatedrepo", "gated repo", "401", "403", "awaiting a review"),
        "accept its licence on its page of the hub and set HF_TOKEN",
    ),
    (("revisionnotfound", "invalid rev id"), "check the revision after the @"),
    (
        ("repositorynotfound", "404", "doesn't exist", "datasetnotfound"),
        "check the name; a private one needs HF_TOKEN",
    ),
)


def hub_advice(error: BaseException) -> str:
    """Return what to do about an error of the hub's libraries, on one line."""
    told = " ".join(f"{type(part).__name__} {part}" for part in _chain(error)).lower()
    for signs, advice in _ADVICE:
        if any(sign in told for sign in signs):
            return advice
    return "check the name and the network"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
