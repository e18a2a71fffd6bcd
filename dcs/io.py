"""Files: written all or nothing, read as bounded JSON and YAML, checked by pydantic models."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from dcs.errors import DCSError, escaped, one_line, reason, show, suggest

#: Largest file of settings: a mistaken path is said at once instead of parsed for minutes.
YAML_BYTES: Final = 2**20

#: Largest file of JSON: a scheme of 1,000 classes with a whole calibration matrix takes 25 MB.
JSON_BYTES: Final = 2**28

#: Deeper nesting is no configuration, and overflows the stack of the compiled YAML parser.
_YAML_DEPTH: Final = 100

_Model = TypeVar("_Model", bound=BaseModel)


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
    if target.exists() and not (target.is_file() or target.is_dir()):
        # Root could replace /dev/null for everybody.
        raise OSError(f"{target}: not a regular file; give the path of a file")
    target.parent.mkdir(parents=True, exist_ok=True)
    # The name of the file is not repeated whole: with an addition it may be too long.
    temporary = target.with_name(f".{target.name[:40]}.{uuid.uuid4().hex}.part")
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        _flush(temporary)
        temporary.replace(target)
        with suppress(OSError):  # Some network file systems cannot flush a folder.
            _flush(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


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
    finally:
        os.close(handle)


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


def existing_file(path: str | os.PathLike[str], *, error: type[DCSError]) -> Path:
    """Return `path` if it is a regular file.

    Raises
    ------
    DCSError
        The class given; if the file is missing, a folder, or a device or pipe, which could be
        read for ever.
    """
    target = Path(path)
    try:
        mode = target.stat().st_mode
    except (OSError, ValueError) as problem:
        raise error(
            f"{escaped(target)}: cannot be read: {reason(problem)}; check the path"
        ) from None
    if not stat.S_ISREG(mode):
        raise error(f"{escaped(target)}: is a folder or a device; give the path of one file")
    return target


def read_text(
    path: str | os.PathLike[str],
    *,
    error: type[DCSError],
    limit: int = JSON_BYTES,
    advice: str = "save it as UTF-8",
) -> str:
    """Return the content of a UTF-8 file of at most `limit` bytes, without a byte order mark.

    Raises
    ------
    DCSError
        The class given; if it is not such a file. Where it is not UTF-8, with the advice given.
    """
    target = existing_file(path, error=error)
    name = escaped(target)
    try:
        if target.stat().st_size > limit:
            raise error(f"{name}: is larger than {limit / 2**20:.0f} MiB; check the path")
        return target.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise error(f"{name}: cannot be read: {reason(problem)}") from None
    except UnicodeDecodeError as problem:
        raise error(f"{name}: not UTF-8 text ({reason(problem)}); {advice}") from None


def read_json(path: str | os.PathLike[str], *, error: type[DCSError]) -> Any:
    """Return the content of a JSON file; see :func:`read_text` and :func:`parse_json`."""
    return parse_json(read_text(path, error=error), source=escaped(path), error=error)


def parse_json(text: str, *, source: str, error: type[DCSError], finite: bool = True) -> Any:
    """Return what JSON text stands for.

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
        The class given, if it is not JSON.
    """
    try:
        return json.loads(text, parse_constant=_refused if finite else None)
    except (ValueError, RecursionError) as problem:
        raise error(f"{source}: not JSON ({reason(problem)})") from None


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def read_yaml(path: str | os.PathLike[str], *, error: type[DCSError]) -> Any:
    """Return the content of a YAML file; see :func:`read_text` and :func:`parse_yaml`."""
    text = read_text(path, error=error, limit=YAML_BYTES)
    return parse_yaml(text, source=escaped(path), error=error)


def parse_yaml(text: str, *, source: str, error: type[DCSError]) -> Any:
    """Return the plain values that YAML text stands for; a key given twice is refused.

    Raises
    ------
    DCSError
        The class given; names `source` and, where known, the line.
    """
    try:
        steps = (
            isinstance(e, yaml.CollectionStartEvent) - isinstance(e, yaml.CollectionEndEvent)
            for e in yaml.parse(text, Loader=yaml.CSafeLoader)
        )
        if any(depth > _YAML_DEPTH for depth in itertools.accumulate(steps)):
            raise yaml.YAMLError(f"nested deeper than {_YAML_DEPTH}; is it the right file?")
        return yaml.load(text, Loader=_UniqueKeys)
    except (yaml.YAMLError, ValueError) as problem:
        # ValueError: a value that does not fit its type, such as the date 2026-13-41.
        raise error(f"{source}: not valid YAML: {escaped(one_line(problem))}") from None


class _UniqueKeys(yaml.CSafeLoader):
    """Refuses repeated keys, of which all but the last would silently be ignored."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"key {show(key.value)} is given twice",
                        problem_mark=key.start_mark,
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class Strict(BaseModel):
    """Unknown keys are errors: a misspelt key that is ignored costs a night on a cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(
                    f"unknown key {show(key)}{suggest(key, cls.model_fields)}; "
                    f"allowed here: {', '.join(sorted(cls.model_fields))}"
                )
        return values


def validated(model: type[_Model], values: Any, *, source: str, error: type[DCSError]) -> _Model:
    """Return a model made of plain values.

    Parameters
    ----------
    model : type of BaseModel
        What the values are checked against.
    values : mapping
        Values by key.
    source : str
        Where they come from: a file, or ``command line``.
    error : type
        The class to raise.

    Raises
    ------
    DCSError
        The class given, if a key or value is not allowed; names the source and the first such key.
    """
    try:
        return model.model_validate(values)
    except ValidationError as problem:
        raise error(f"{source}: {first_fault(problem)}") from None


def as_value_error(function: Callable[[Any], Any], value: Any) -> Any:
    """Call a function of ours so that pydantic names the place of what it refuses."""
    try:
        return function(value)
    except DCSError as error:
        raise ValueError(str(error)) from None


def first_fault(error: ValidationError) -> str:
    """Say on one line which key does not fit, what is allowed and what is there."""
    faults = error.errors(include_url=False)
    first = faults[0]
    place = ".".join(map(str, first["loc"]))
    said = escaped(first["msg"].removeprefix("Value error, "))
    if first["type"] not in ("value_error", "missing"):
        said += f", got {show(first['input'])}"
    others = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{f'key {place!r}: ' if place else ''}{said}{others}"
