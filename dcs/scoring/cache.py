"""A scorer that asks its store first, and keeps what it had to ask the model."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ConfigError
from dcs.io import content_key, memory_bound
from dcs.messages import reason
from dcs.scoring._claims import CLAIM
from dcs.scoring._places import Place, open_place
from dcs.scoring.base import SCORING_VERSION, Progress, Scorer

__all__ = [
    "GroupInfo",
    "SHARD_SIZE",
    "ShardGroup",
    "ShardStore",
    "StoredScorer",
    "group_key",
    "query_hash",
    "score_settings",
]


_log = logging.getLogger(__name__)

_SETTINGS = "settings.json"

_SHARD = ".npz"

_LEFT = (".part", ".lock", CLAIM)  # what a killed process leaves behind

_STALE = 86400.0  # seconds after which such a file has nobody any more


def group_key(settings: Mapping[str, Any]) -> str:
    """Return the name of a group: the hash of the canonical JSON of its settings.

    What begins with an underscore is for people and does not count.
    """
    return content_key({k: v for k, v in settings.items() if not k.startswith("_")})


def query_hash(query: str) -> bytes:
    """Return what a row is found by: 16 bytes of the hash of its query."""
    return hashlib.sha256(query.encode("utf-8", "surrogatepass")).digest()[:16]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """What a group holds.

    Attributes
    ----------
    key : str
        Its name.
    settings : dict
        All that decides its numbers but the queries.
    shards, rows, size : int
        Files, prompts, bytes.
    modified : float
        When a shard was last written, in seconds since 1970.
    """

    key: str
    settings: dict[str, Any]
    shards: int
    rows: int
    size: int
    modified: float


@dataclass(slots=True)
class ShardGroup:
    """The rows of one group, read as they are needed and kept in memory.

    Attributes
    ----------
    place : Place
        Where the store is.
    key : str
        The group's name.
    settings : dict
        What the name is the hash of.
    rows : dict of bytes to float64 array [N]
        Probabilities by query hash.
    """

    place: Place
    key: str
    settings: dict[str, Any]
    rows: dict[bytes, NDArray[np.float64]] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def refresh(self) -> None:
        """Read the shards that have been written since, by whichever process.

        A damaged shard counts as not there, with a warning; its prompts are scored again.
        """
        for name in sorted(self.place.files(self.key)):
            if not name.endswith(_SHARD) or name in self._seen:
                continue
            data = self.place.read(f"{self.key}/{name}")
            if data is None:
                continue
            self._seen.add(name)
            try:
                hashes, probs = _decode(name, data, _n_classes(self.settings))
            except ValueError as error:
                _log.warning("store %s: shard %s/%s: %s", self.place.url, self.key, name, error)
                continue
            self.rows.update(zip(hashes, probs, strict=True))

    def write(self, hashes: Sequence[bytes], probs: NDArray[np.float64]) -> str:
        """Keep the probabilities of some queries as one shard; returns its name."""
        self.write_settings()
        data = _encode(hashes, probs)
        name = f"{hashlib.sha256(data).hexdigest()[:32]}{_SHARD}"
        self.place.write(f"{self.key}/{name}", data)
        self._seen.add(name)
        self.rows.update(zip(hashes, np.asarray(probs, dtype=np.float64), strict=True))
        return name

    def write_settings(self) -> None:
        """Write what the group's name is the hash of, unless it is there undamaged."""
        if group_key(_read_settings(self.place, self.key)) != self.key:
            text = json.dumps(self.settings, indent=1, sort_keys=True, ensure_ascii=False)
            self.place.write(f"{self.key}/{_SETTINGS}", text.encode("utf-8"))

    def lock(self, hashes: Sequence[bytes], *, wait: bool) -> AbstractContextManager[bool]:
        """Hold the work on some queries, so that no other process does the same work.

        Gives False if another process holds it and `wait` is off. Shards that begin with the same
        query have the same lock, also those of a run that scores fewer.
        """
        name = hashes[0].hex()
        lock: AbstractContextManager[bool] = self.place.lock(f"{self.key}/.{name}.lock", wait=wait)
        return lock


class ShardStore:
    """A store of scored prompts.

    Parameters
    ----------
    url : str or path-like
        A local folder, or a URL for fsspec (``s3://bucket/folder``, ``gs://...``).

    Raises
    ------
    ConfigError
        If the place cannot be used.
    MissingDependencyError
        If the URL needs a package that is not installed.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self._place = open_place(url)
        self.url = self._place.url

    def group(self, settings: Mapping[str, Any]) -> ShardGroup:
        """Return the group of these settings, with what has been stored of it."""
        plain = json.loads(json.dumps(settings))
        group = ShardGroup(self._place, group_key(plain), plain)
        group.refresh()
        if group.rows:
            group.write_settings()
        return group

    def groups(self) -> list[GroupInfo]:
        """Return what is in the store, latest first."""
        # A file system that is not local may show a folder that has lost its last file.
        infos = [info for info in map(self.info, self._keys()) if info.shards or info.settings]
        return sorted(infos, key=lambda info: (-info.modified, info.key))

    def info(self, key: str) -> GroupInfo:
        """Return what a group holds.

        Parameters
        ----------
        key : str
            Its name, or the beginning of it.

        Raises
        ------
        ConfigError
            If no group, or more than one, has such a name.
        """
        full = self._find(key)
        group = ShardGroup(self._place, full, _read_settings(self._place, full))
        group.refresh()
        sizes = self._shards(full)
        return GroupInfo(
            key=full,
            settings=group.settings,
            shards=len(sizes),
            rows=len(group.rows),
            size=sum(sizes.values()),
            modified=max((self._place.modified(f"{full}/{name}") for name in sizes), default=0.0),
        )

    def verify(self) -> list[str]:
        """Check every file against its name; returns one line for each that is damaged."""
        problems = []
        for key in self._keys():
            settings = _read_settings(self._place, key)
            if group_key(settings) != key:
                problems.append(
                    f"{key}/{_SETTINGS}: missing, or not the settings of this group; a run that "
                    "needs the group writes them again"
                )
            for name in self._shards(key):
                try:
                    self._read_shard(key, name, settings)
                except ValueError as error:
                    problems.append(f"{key}/{name}: {error}")
        return problems

    def collect(
        self, *, older_than: float | None = None, keys: Iterable[str] = (), dry_run: bool = False
    ) -> list[str]:
        """Remove what nobody needs; returns the names of the files.

        Parameters
        ----------
        older_than : float, optional
            Also groups that were last written to more than so many seconds ago.
        keys : iterable of str
            Also these groups (names or their beginnings).
        dry_run : bool
            Only say what would go.

        Always removed: what a killed process left behind (more than a day ago), damaged shards,
        and shards whose rows are all in others.
        """
        now = time.time()
        chosen = {self._find(key) for key in keys}
        removed = []
        for key in self._keys():
            modified = self.info(key).modified
            whole = key in chosen or (older_than is not None and now - modified > older_than)
            names = sorted(self._place.files(key)) if whole else self._garbage(key, now)
            removed += [f"{key}/{name}" for name in names]
        if not dry_run:
            for name in removed:
                self._place.delete(name)
        return removed

    def _garbage(self, key: str, now: float) -> list[str]:
        settings = _read_settings(self._place, key)
        names, content = [], {}
        for name in sorted(self._place.files(key)):
            if name.endswith(_SHARD):
                try:
                    content[name] = self._read_shard(key, name, settings)
                except ValueError:
                    names.append(name)
            elif name.endswith(_LEFT) and now - self._place.modified(f"{key}/{name}") > _STALE:
                names.append(name)
        # Largest first: a shard that larger ones cover is not needed.
        covered: set[bytes] = set()
        for name, hashes in sorted(content.items(), key=lambda item: (-len(item[1]), item[0])):
            if covered.issuperset(hashes):
                names.append(name)
            covered.update(hashes)
        return names

    def _read_shard(self, key: str, name: str, settings: Mapping[str, Any]) -> list[bytes]:
        data = self._place.read(f"{key}/{name}") or b""
        return _decode(name, data, _n_classes(settings))[0]

    def _keys(self) -> list[str]:
        return [name for name in self._place.folders() if len(name) == 32]

    def _find(self, key: str) -> str:
        found = [name for name in self._keys() if name.startswith(key)]
        if len(found) != 1:
            what = "more than one group" if found else "no group"
            raise ConfigError(
                f"store {self.url!r}: {what} begins with {key!r}; dcs store ls names them"
            )
        return found[0]

    def _shards(self, key: str) -> dict[str, int]:
        sizes = self._place.files(key)
        return {name: size for name, size in sorted(sizes.items()) if name.endswith(_SHARD)}


def _n_classes(settings: Mapping[str, Any]) -> int | None:
    words = settings.get("label_words")
    return len(words) if isinstance(words, list) else None


def _read_settings(place: Place, key: str) -> dict[str, Any]:
    try:
        content = json.loads(place.read(f"{key}/{_SETTINGS}") or b"{}")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _encode(hashes: Sequence[bytes], probs: NDArray[np.float64]) -> bytes:
    buffer = io.BytesIO()
    names = np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(len(hashes), 16)
    np.savez(buffer, queries=names, probs=np.asarray(probs, dtype="<f8"))
    return buffer.getvalue()


def _decode(
    name: str, data: bytes, n_classes: int | None
) -> tuple[list[bytes], NDArray[np.float64]]:
    """Read a shard; raises ValueError with the reason if it is not what its name says."""
    if hashlib.sha256(data).hexdigest()[:32] != name.removesuffix(_SHARD):
        raise ValueError("damaged: its content does not match its name")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as members:
            size = sum(member.file_size for member in members.infolist())
        if size > memory_bound():
            raise ValueError(f"unpacks to {size} bytes")
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            queries, probs = archive["queries"], archive["probs"]
    except Exception as error:
        # Archives of others fail in zipfile, zlib, struct, the header's parser or the allocator.
        raise ValueError(f"not a shard: {reason(error)}") from None
    if queries.dtype != np.uint8 or probs.dtype != np.float64 or probs.ndim != 2:
        raise ValueError(f"not a shard: {queries.dtype} and {probs.dtype} {probs.shape}")
    if not np.isfinite(probs).all() or (probs < 0).any():
        raise ValueError("not a shard: its values are no probabilities")
    if queries.shape != (len(probs), 16) or (n_classes or probs.shape[-1]) != probs.shape[-1]:
        raise ValueError(f"not a shard of this group: shapes {queries.shape}, {probs.shape}")
    return [row.tobytes() for row in queries], probs


SHARD_SIZE = 256

"""Queries of one shard: the most that a killed run has to do again."""

_CONTENT_REVISION = re.compile(r"sha256:[0-9a-f]+")


def score_settings(scorer: Scorer, prefix: str, label_words: Sequence[str]) -> dict[str, Any]:
    """Return all that decides the probabilities of a query but the query itself.

    A model folder goes by its content, whatever it is called; other models by name and revision.
    ``_model`` is what it was called, for people.
    """
    is_content = _CONTENT_REVISION.fullmatch(scorer.revision)
    return {
        "model": None if is_content else scorer.model,
        "revision": scorer.revision,
        "scorer": scorer.name,
        "scorer_version": scorer.version,
        "scoring": SCORING_VERSION,
        "settings": dict(getattr(scorer, "settings", {})),
        "prefix": prefix,
        "label_words": list(label_words),
        "_model": scorer.model,
    }


class StoredScorer:
    """Gives the probabilities of another scorer, each scored once.

    Queries are scored in shards of consecutive ones; each is written as soon as it is done, all
    or nothing. What a run that was killed has finished is not done again, and the probabilities
    are the same to the last bit as without the kill. Of several processes that share a store,
    one scores a shard and the others wait for it.

    Parameters
    ----------
    scorer : Scorer
        What scores the prompts that are not in the store.
    store : ShardStore
        Where they are kept.
    shard_size : int
        Queries of one shard.
    """

    def __init__(self, scorer: Scorer, store: ShardStore, *, shard_size: int = SHARD_SIZE) -> None:
        self._scorer = scorer
        self._store = store
        self._shard_size = shard_size
        self.scored = 0
        """Queries that the model has been asked so far."""

    @property
    def name(self) -> str:
        """The engine."""
        return self._scorer.name

    @property
    def version(self) -> str:
        """The versions of the software that decide the engine's numbers."""
        return self._scorer.version

    @property
    def model(self) -> str:
        """The model, as it was named."""
        return self._scorer.model

    @property
    def revision(self) -> str:
        """The exact version of the model's weights."""
        return self._scorer.revision

    @property
    def settings(self) -> Mapping[str, str]:
        """What else decides the engine's numbers."""
        return dict(getattr(self._scorer, "settings", {}))

    def score(
        self,
        prefix: str,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Return the class probabilities of the prompts ``prefix + query``.

        See :meth:`dcs.scoring.Scorer.score`.
        """
        report = progress or (lambda count: None)
        group = self._store.group(score_settings(self._scorer, prefix, label_words))
        hashes = [query_hash(query) for query in queries]
        by_hash = dict(zip(hashes, queries, strict=True))
        distinct = list(by_hash)
        # Cut before looking at what is there: a run that goes on cuts as the first one did.
        shards = [
            distinct[start : start + self._shard_size]
            for start in range(0, len(distinct), self._shard_size)
        ]
        copies = Counter(hashes)
        postponed = []

        def extra(shard: Sequence[bytes]) -> None:
            more = sum(copies[key] - 1 for key in shard)
            if more:
                report(more)

        for shard in shards:
            if self._do(group, shard, by_hash, label_words, prefix, report, wait=False):
                extra(shard)
            else:
                postponed.append(shard)
        for shard in postponed:
            self._do(group, shard, by_hash, label_words, prefix, report, wait=True)
            extra(shard)
        if not hashes:
            return self._scorer.score(prefix, [], label_words)
        return np.stack([group.rows[key] for key in hashes])

    def _do(
        self,
        group: ShardGroup,
        shard: Sequence[bytes],
        by_hash: Mapping[bytes, str],
        label_words: Sequence[str],
        prefix: str,
        report: Progress,
        *,
        wait: bool,
    ) -> bool:
        if all(key in group.rows for key in shard):
            report(len(shard))
            return True
        with group.lock(shard, wait=wait) as held:
            if not held:
                return False
            group.refresh()  # whoever held it before has written it
            missing = [key for key in shard if key not in group.rows]
            if missing:
                texts = [by_hash[key] for key in missing]
                probs = self._scorer.score(prefix, texts, label_words, progress=report)
                group.write(missing, probs)
                self.scored += len(missing)
            if len(missing) < len(shard):
                report(len(shard) - len(missing))
            return True

    def report(self) -> list[str]:
        """Return what the engine has to say, e.g. labels missing from a server's answers."""
        lines: list[str] = getattr(self._scorer, "report", list)()
        return lines

    def close(self) -> None:
        """Free the model's memory. The scorer cannot be used afterwards."""
        self._scorer.close()
