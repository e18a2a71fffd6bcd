"""Scored prompts on disk, and the scorer that asks them first.

A store is a folder. Prompts that differ in the query alone form a group: a folder named by the
hash of all that decides their numbers, which its ``settings.json`` spells out. The rows of a
group lie in shards, NPZ files named by the hash of their content.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from dcs.errors import ConfigError, DCSError, reason
from dcs.io import atomic_write_bytes, atomic_write_text, content_key
from dcs.scoring.base import SCORING_VERSION, Progress, Scorer

_log = logging.getLogger(__name__)

SHARD_SIZE = 256
"""Queries of one shard: the most that a killed run has to do again."""


def score_settings(scorer: Scorer, prefix: str, label_words: Sequence[str]) -> dict[str, Any]:
    """Return all that decides the probabilities of a query but the query itself.

    A model folder goes by its content, whatever it is called; other models by name and revision.
    ``_model`` is what it was called, for people.
    """
    is_content = scorer.revision.startswith("sha256:")
    return {
        "model": None if is_content else scorer.model,
        "revision": scorer.revision,
        "scorer": scorer.name,
        "scorer_version": scorer.version,
        "scoring": SCORING_VERSION,
        "settings": dict(scorer.settings),
        "prefix": prefix,
        "label_words": list(label_words),
        "_model": scorer.model,
    }


def group_key(settings: Mapping[str, Any]) -> str:
    """Return the name of a group: the hash of the canonical JSON of its settings.

    What begins with an underscore is for people and does not count.
    """
    return content_key({k: v for k, v in settings.items() if not k.startswith("_")})


def query_hash(query: str) -> bytes:
    """Return what a row is found by: 16 bytes of the hash of its query."""
    return hashlib.sha256(query.encode("utf-8", "surrogatepass")).digest()[:16]


class ShardGroup:
    """The rows of one group, read as they are needed and kept in memory.

    Parameters
    ----------
    store : pathlib.Path
        The store.
    settings : mapping
        What the name of the group's folder is the hash of.

    Attributes
    ----------
    folder : pathlib.Path
        Where its shards lie.
    rows : dict of bytes to float64 array [N]
        Probabilities by query hash.
    """

    def __init__(self, store: Path, settings: Mapping[str, Any]) -> None:
        self.folder = store / group_key(settings)
        self.rows: dict[bytes, NDArray[np.float64]] = {}
        self._settings = settings
        self._seen: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Read the shards that have been written since, by whichever process.

        A damaged shard counts as not there, with a warning; its prompts are scored again.
        """
        for path in sorted(self.folder.glob("*.npz")):
            if path.name in self._seen:
                continue
            self._seen.add(path.name)
            try:
                hashes, probs = _read(path)
            except (OSError, ValueError) as error:
                _log.warning("%s is damaged and left out: %s", path, reason(error))
            else:
                self.rows.update(zip(hashes, probs, strict=True))

    def write(self, hashes: Sequence[bytes], probs: NDArray[np.float64]) -> None:
        """Keep the probabilities of some queries as one shard."""
        buffer = io.BytesIO()
        queries = np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(len(hashes), 16)
        np.savez(buffer, queries=queries, probs=np.asarray(probs, dtype="<f8"))
        data = buffer.getvalue()
        path = self.folder / f"{_digest(data)}.npz"
        described = self.folder / "settings.json"
        with _refused(self.folder):
            if not described.exists():
                text = json.dumps(self._settings, indent=1, sort_keys=True, ensure_ascii=False)
                atomic_write_text(described, text)
            atomic_write_bytes(path, data)
        self._seen.add(path.name)
        self.rows.update(zip(hashes, np.asarray(probs, dtype=np.float64), strict=True))

    def lock(self, hashes: Sequence[bytes], *, wait: bool) -> FileLock:
        """Return the lock on the work on some queries: no other process does the same work.

        Taking it raises Timeout if another process holds it and `wait` is off. Shards that begin
        with the same query have the same lock, also those of a run that scores fewer.
        """
        with _refused(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / f".{hashes[0].hex()}.lock", blocking=wait)


@contextmanager
def _refused(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DCSError(f"{folder}: cannot be written to: {reason(error)}") from None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _read(path: Path) -> tuple[list[bytes], NDArray[np.float64]]:
    """Read the hashes and probabilities of a shard, which its name is the hash of."""
    data = path.read_bytes()
    if _digest(data) != path.stem:
        raise ValueError("its content does not match its name")
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return [row.tobytes() for row in archive["queries"]], archive["probs"]


def local_folder(store: str | os.PathLike[str]) -> str:
    """Return the path of a store, which may be neither a URL nor a file."""
    path = os.fspath(store)
    if "://" in path or Path(path).expanduser().is_file():
        raise ConfigError(f"store {path!r}: give a local folder")
    return path


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
    store : str or path-like
        Where they are kept: a local folder, made at the first write.
    shard_size : int
        Queries of one shard.

    Raises
    ------
    ConfigError
        If the store is a URL or a file.
    """

    def __init__(
        self, scorer: Scorer, store: str | os.PathLike[str], *, shard_size: int = SHARD_SIZE
    ) -> None:
        self._folder = Path(local_folder(store)).expanduser()
        self.name, self.version = scorer.name, scorer.version
        self.model, self.revision = scorer.model, scorer.revision
        self.settings: Mapping[str, str] = dict(scorer.settings)
        self.scored = 0
        """Queries that the model has been asked so far."""
        self._scorer, self._shard_size = scorer, shard_size

    @property
    def tokens_read(self) -> int:
        """Tokens of all prompts that the model was asked; 0 where its engine does not say."""
        return getattr(self._scorer, "tokens_read", 0)

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
        if not queries:
            return self._scorer.score(prefix, [], label_words)
        report = progress or (lambda count: None)
        group = ShardGroup(self._folder, score_settings(self._scorer, prefix, label_words))
        hashes = [query_hash(query) for query in queries]
        by_hash = dict(zip(hashes, queries, strict=True))

        def missing(shard: Sequence[bytes]) -> list[bytes]:
            return [key for key in shard if key not in group.rows]

        def finish(shard: Sequence[bytes], *, wait: bool) -> None:
            """Have all rows of a shard; raises Timeout if another process is at work on it."""
            absent = missing(shard)
            if absent:
                with group.lock(shard, wait=wait):
                    group.refresh()  # whoever held it before has written it
                    absent = missing(shard)
                    if absent:
                        texts = [by_hash[key] for key in absent]
                        probs = self._scorer.score(prefix, texts, label_words, progress=report)
                        group.write(absent, probs)
                        self.scored += len(absent)
            if len(absent) < len(shard):
                report(len(shard) - len(absent))

        # Cut before looking at what is there: a run that goes on cuts as the first one did.
        distinct = list(by_hash)
        cuts = range(0, len(distinct), self._shard_size)
        shards = [distinct[start : start + self._shard_size] for start in cuts]
        busy = []
        for shard in shards:
            try:
                finish(shard, wait=False)
            except Timeout:
                busy.append(shard)
        for shard in busy:
            finish(shard, wait=True)
        if len(distinct) < len(hashes):
            report(len(hashes) - len(distinct))
        return np.stack([group.rows[key] for key in hashes])

    def report(self) -> list[str]:
        """Return what the engine has to say, e.g. labels missing from a server's answers."""
        lines: list[str] = getattr(self._scorer, "report", list)()
        return lines

    def close(self) -> None:
        """Free the model's memory. The scorer cannot be used afterwards."""
        self._scorer.close()
