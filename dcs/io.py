"""Atomic writes, size-limited JSON and YAML readers, and validation by pydantic models."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from dcs.errors import DCSError, check_choice, escaped, one_line, reason, show

#: Size limit of configuration files: a mistaken path fails at once, not after minutes of parsing.
YAML_BYTES: Final = 2**20

#: Size limit of JSON files: a scheme of 1,000 classes with a full calibration matrix takes 25 MB.
JSON_BYTES: Final = 2**28

#: Nesting limit: deeper documents overflow the stack of the compiled YAML parser.
_MAX_YAML_DEPTH: Final = 100

_Model = TypeVar("_Model", bound=BaseModel)


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Let errors of writing name `path`: a full disk names no file, others the temporary one."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.filename == str(temporary):
            error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to write to, which replaces `path` on success.

    The data is flushed to disk before the rename, so that after a crash `path` holds either the
    old content or all of the new. A file that is replaced keeps its permissions.

    Parameters
    ----------
    path : path-like
        File to create or replace. Missing parent folders are created.

    Yields
    ------
    pathlib.Path
        An empty file in the same folder.

    Raises
    ------
    OSError
        If the file cannot be written, or `path` is a device, a pipe or a socket.
    """
    target = Path(path)
    if target.exists() and not (target.is_file() or target.is_dir()):
        # Root could replace /dev/null for all users.
        raise OSError(f"{target}: not a regular file; give the path of a file")
    target.parent.mkdir(parents=True, exist_ok=True)
    # The name is truncated, since the additions could exceed the maximum length of a name.
    temporary = target.with_name(f".{target.name[:40]}.{uuid.uuid4().hex}.part")
    try:
        with naming(target, temporary):
            temporary.touch(exist_ok=False)
            if target.is_file():
                shutil.copymode(target, temporary)
            yield temporary
            _fsync(temporary)
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    with suppress(OSError):  # Some network file systems cannot flush folders.
        _fsync(target.parent)


def inert(cell: Any) -> Any:
    """Return a cell for CSV, with a quote before what a spreadsheet would run as a formula."""
    return f"'{cell}" if isinstance(cell, str) and re.match(r"[=@\t\r]|[+-](?!\d)", cell) else cell


def write_together(files: Mapping[Path, bytes | str | Callable[[Path], object] | None]) -> None:
    """Write several files that belong together: all of them or, if one cannot be written, none.

    Parameters
    ----------
    files : mapping of path to bytes, str, callable or None
        The content of each file; a callable writes it to the path that it is given, and None
        removes the file once the others are complete.

    Raises
    ------
    OSError
        As of :func:`atomic_path`; all files are then as before.
    """
    with ExitStack() as stack:
        # The one that is begun last is put in its place first.
        for path, content in reversed([*files.items()]):
            if content is None:
                continue
            temporary = stack.enter_context(atomic_path(path))
            if callable(content):
                content(temporary)
            else:
                temporary.write_bytes(content.encode() if isinstance(content, str) else content)
            _fsync(temporary)  # All are on the disk before one is in its place.
    for path, content in files.items():
        if content is None:
            path.unlink(missing_ok=True)


def atomic_write(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write `content` to `path` atomically; text as UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def _fsync(path: Path) -> None:
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
        The hash, identical on every machine.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def existing_file(path: str | os.PathLike[str], *, error: type[DCSError]) -> Path:
    """Return `path` if it is a regular file.

    Raises
    ------
    DCSError
        The given class, if the file does not exist or is not a regular file: reading a device or
        a pipe might never end.
    """
    target = Path(path)
    with readable(escaped(target), "give the path of one file", error=error):
        target.stat()  # Says why it cannot be read.
    if not target.is_file():
        raise error(f"{escaped(target)}: is a folder or a device; give the path of one file")
    return target


@contextmanager
def readable(source: str, advice: str, *, error: type[DCSError]) -> Iterator[None]:
    """Refuse content that a library cannot read, whatever it raises in the block.

    Raises
    ------
    DCSError
        The given class; its message begins with `source` and ends with `advice`.
    """
    try:
        yield
    except DCSError:
        raise
    except Exception as problem:
        # Corrupt content fails in parsers, codecs and allocators, with errors of many classes.
        raise error(f"{source}: cannot be read: {reason(problem)}; {advice}") from problem


def read_text(
    path: str | os.PathLike[str],
    *,
    error: type[DCSError],
    limit: int = JSON_BYTES,
    advice: str = "save it as UTF-8, unpacked",
) -> str:
    """Return the content of a UTF-8 file of at most `limit` bytes, without a byte order mark.

    Raises
    ------
    DCSError
        The given class, if the file cannot be read, is too large, or is not UTF-8; `advice` ends
        the message unless it is too large.
    """
    target = existing_file(path, error=error)
    with readable(escaped(target), advice, error=error):
        if target.stat().st_size > limit:
            fault = f"is larger than {limit / 2**20:.0f} MiB; check the path"
            raise error(f"{escaped(target)}: {fault}")
        return target.read_text(encoding="utf-8-sig")


def read_json(path: str | os.PathLike[str], *, error: type[DCSError]) -> Any:
    """Return the content of a JSON file; see :func:`read_text` and :func:`parse_json`."""
    return parse_json(read_text(path, error=error), source=escaped(path), error=error)


def parse_json(text: str, *, source: str, error: type[DCSError], finite: bool = True) -> Any:
    """Parse JSON text.

    Parameters
    ----------
    text : str
        JSON text.
    source : str
        Name of the text in error messages.
    error : type
        Class of the error to raise.
    finite : bool
        Whether to refuse NaN and infinities, which other programs may write in unused fields.

    Raises
    ------
    DCSError
        The given class, if the text is not valid JSON.
    """
    try:
        constant = _refuse_constant if finite else None
        content = json.loads(text, parse_constant=constant, object_pairs_hook=_unique_keys)
        if re.search(r"(?i)\\ud[89a-f]", text):
            # Half a pair of surrogates is not a character, and could not be written to a file.
            json.dumps(content, ensure_ascii=False).encode("utf-8")
        return content
    except (ValueError, RecursionError) as problem:
        raise error(f"{source}: not valid JSON ({reason(problem)})") from None


def parse_json_lines(text: str, *, source: str, error: type[DCSError]) -> list[Any]:
    """Return the values of JSON lines; NaN and infinities are allowed, errors name the line."""
    # Only line feeds end a line: texts may contain other separators used by splitlines().
    numbered = ((n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip())
    read = partial(parse_json, error=error, finite=False)
    return [read(line, source=f"{source}: line {n}") for n, line in numbered]


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, unless a key is there twice: which of the values counts is unclear."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} is there twice")
    return content


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def read_yaml(path: str | os.PathLike[str], *, error: type[DCSError]) -> Any:
    """Return the content of a YAML file; see :func:`read_text` and :func:`parse_yaml`."""
    text = read_text(path, error=error, limit=YAML_BYTES)
    return parse_yaml(text, source=escaped(path), error=error)


def parse_yaml(text: str, *, source: str, error: type[DCSError]) -> Any:
    """Parse YAML text to plain values; duplicate keys are refused.

    Raises
    ------
    DCSError
        The given class; names `source` and, if known, the line.
    """
    try:
        _refuse_deep_yaml(text)
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        # ValueError: an invalid value of a type, such as the date 2026-13-41.
        raise error(f"{source}: not valid YAML: {escaped(one_line(problem))}") from None


def _refuse_deep_yaml(text: str) -> None:
    """Refuse documents that are nested deeply, or whose aliases could make them endless."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_YAML_DEPTH:
            raise yaml.YAMLError(f"nested deeper than {_MAX_YAML_DEPTH}; is it the right file?")
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"alias *{event.anchor}: aliases are not read; repeat the value")


class _UniqueKeyLoader(yaml.CSafeLoader):
    """YAML loader that refuses duplicate keys, of which PyYAML silently uses the last.

    Refused, too, are 010 and 1:30, which YAML 1.1 reads as 8 and 90.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    fault = f"duplicate key {show(key.value)}"
                    raise yaml.MarkedYAMLError(problem=fault, problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int:
        if re.fullmatch(r"[+-]?0[0-9_]+|.*:.*", node.value):
            fault = f"{show(node.value)} is {self.construct_yaml_int(node)}; quote or rewrite it"
            raise yaml.MarkedYAMLError(problem=fault, problem_mark=node.start_mark)
        return int(self.construct_yaml_int(node))


_UniqueKeyLoader.add_constructor("tag:yaml.org,2002:int", _UniqueKeyLoader.construct_number)


class Strict(BaseModel):
    """Base model without unknown keys: ignoring a misspelt key wastes a night on a cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: Any) -> Any:
        for key, value in values.items() if isinstance(values, dict) else ():
            check_choice("unknown key", key, sorted(cls.model_fields))
            several = value if isinstance(value, list) else [value]
            allowed = re.search("bool|Any", str(cls.model_fields[key].annotation))
            if not allowed and any(isinstance(each, bool) for each in several):
                raise ValueError(f"{key} is true or false, as YAML reads yes and no; give a value")
        return values


def as_values(value: Any) -> Any:
    """Return a list as a tuple, and another value as one of it alone."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def validated(model: type[_Model], values: Any, *, source: str, error: type[DCSError]) -> _Model:
    """Validate plain values.

    Parameters
    ----------
    model : type of BaseModel
        Model to validate the values against.
    values : mapping
        Values by key.
    source : str
        Origin of the values in error messages: a file, or ``command line``.
    error : type
        Class of the error to raise.

    Raises
    ------
    DCSError
        The given class, if a key or value is invalid; names the source and the first such key.
    """
    try:
        return model.model_validate(values)
    except ValidationError as problem:
        raise error(f"{source}: {first_fault(problem)}") from None


def first_fault(error: ValidationError) -> str:
    """Return one line that names the first invalid key, what is allowed, and the value."""
    errors = error.errors(include_url=False)
    first = errors[0]
    key = ".".join(map(str, first["loc"]))
    message = escaped(first["msg"].removeprefix("Value error, "))
    if first["type"] not in ("value_error", "missing"):
        message += f", got {show(first['input'])}"
    others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{f'key {key!r}: ' if key else ''}{message}{others}"
