"""An on-disk cache of scored prompts, and the scorer that uses it.

A store is a folder. Prompts that differ only in the query form a group: a folder named by the
hash of everything that determines their numbers. The rows of a group are stored in shards, NPZ
files named by the hash of their content.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ConfigError, reason
from dcs.io import atomic_write, content_key
from dcs.plugins import plugin_version
from dcs.prompting.tasks import PromptPrefix
from dcs.scoring.base import SCORING_VERSION, Advance, Engine, Prompts, Scorer, Scores, score_rows

_log = logging.getLogger(__name__)

#: Queries per shard: the maximum that has to be scored again after a killed run.
SHARD_SIZE = 256


def score_settings(
    scorer: Scorer, prefix: str | PromptPrefix, label_words: Sequence[str]
) -> dict[str, Any]:
    """Return everything except the query that determines its probabilities.

    A local model is identified by the hash of its content; other models by name and revision.
    """
    is_content = scorer.revision.startswith("sha256:")
    is_chat = scorer.settings.get("prompt", "completion") != "completion"
    plugin = plugin_version("dcs.engines", scorer.name)
    return {
        "model": None if is_content else scorer.model,
        "revision": scorer.revision,
        "scorer": scorer.name,
        "scorer_version": scorer.version,
        **({} if plugin is None else {"plugin": plugin}),
        "scoring": SCORING_VERSION,
        "settings": dict(scorer.settings),
        # The text alone does not tell the turns of a chat.
        "prefix": str(prefix) if isinstance(prefix, str) or not is_chat else asdict(prefix),
        "label_words": list(label_words),
    }


def query_hash(query: str) -> bytes:
    """Return the key of a row: the first 16 bytes of the hash of its query."""
    return hashlib.sha256(query.encode("utf-8", "surrogatepass")).digest()[:16]


class ShardGroup:
    """The rows of one group, held in memory once :meth:`refresh` has read them.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of the shards.

    Attributes
    ----------
    rows : dict of bytes to float64 array [N]
        Class probabilities by query hash.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: dict[bytes, NDArray[np.float64]] = {}
        self._seen: set[str] = set()

    def refresh(self) -> None:
        """Read the shards written by any process since the last call.

        A damaged shard is skipped with a warning; its prompts are scored again.
        """
        for path in sorted(self.folder.glob("*.npz")):
            if path.name in self._seen:
                continue
            self._seen.add(path.name)
            try:
                data = path.read_bytes()
                if _digest(data) != path.stem:
                    raise ValueError("content does not match the hash in the file name")
                with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                    hashes = (row.tobytes() for row in archive["queries"])
                    self.rows.update(zip(hashes, archive["probs"], strict=True))
            except (OSError, ValueError) as error:
                _log.warning("%s is damaged and is skipped: %s", path, reason(error))

    def write(self, hashes: Sequence[bytes], probs: NDArray[np.float64]) -> None:
        """Write the probabilities of some queries as one shard."""
        buffer = io.BytesIO()
        queries = np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(len(hashes), 16)
        np.savez(buffer, queries=queries, probs=np.asarray(probs, dtype="<f8"))
        data = buffer.getvalue()
        path = self.folder / f"{_digest(data)}.npz"
        atomic_write(path, data)
        self._seen.add(path.name)
        self.rows.update(zip(hashes, np.asarray(probs, dtype=np.float64), strict=True))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def local_folder(store: str | os.PathLike[str]) -> str:
    """Return the path of a store; raise ConfigError if it is a URL or a file."""
    path = os.fspath(store)
    if "://" in path or os.path.isfile(os.path.expanduser(path)):
        raise ConfigError(f"store {path!r}: must be a local folder, not a URL or a file")
    return path


class StoredScorer(Engine):
    """A scorer that caches the probabilities of another scorer on disk.

    Queries are scored in shards of consecutive queries; each shard is written atomically as soon
    as it is complete, without the prompts that could not be scored. A killed run resumes after its
    last complete shard, and the probabilities are bit-identical to those of an uninterrupted run
    unless the numbers of the engine depend on the batch. Several processes may share a store, and
    several threads, which take turns with the engine.

    Parameters
    ----------
    scorer : Scorer
        The scorer for prompts that are not in the store.
    store : str or path-like
        A local folder, created on the first write.

    Raises
    ------
    ConfigError
        If the store is a URL or a file.
    """

    def __init__(self, scorer: Scorer, store: str | os.PathLike[str]) -> None:
        self._folder = Path(os.path.expanduser(local_folder(store)))
        self.name, self.version = scorer.name, scorer.version
        self.model, self.revision = scorer.model, scorer.revision
        self.settings: Mapping[str, str] = dict(scorer.settings)
        #: Number of queries scored by the model so far.
        self.scored = 0
        self._scorer = scorer
        self._group: ShardGroup | None = None
        self._turn = threading.Lock()

    def _score(self, prompts: Prompts, progress: Advance) -> Scores:
        prefix, queries, label_words = prompts
        folder = self._folder / content_key(score_settings(self._scorer, prefix, label_words))
        # The last one is kept, since a table is scored in many calls.
        if (group := self._group) is None or group.folder != folder:
            self._group = group = ShardGroup(folder)
        hashes = [query_hash(query) for query in queries]
        by_hash = dict(zip(hashes, queries, strict=True))

        reasons: dict[bytes, str] = {}
        # Shard before checking the store, so that a resumed run has the shards of the first run.
        distinct = list(by_hash)
        for start in range(0, len(distinct), SHARD_SIZE):
            shard = distinct[start : start + SHARD_SIZE]
            with self._turn:
                if any(key not in group.rows for key in shard):
                    group.refresh()  # Another process may have scored it.
                absent = [key for key in shard if key not in group.rows]
                if absent:
                    asked = Prompts(prefix, [by_hash[key] for key in absent], label_words)
                    probs, failed = score_rows(self._scorer, asked, progress)
                    self.tokens_read = getattr(self._scorer, "tokens_read", 0)
                    scored = [row for row in range(len(absent)) if row not in failed]
                    if scored:
                        group.write([absent[row] for row in scored], probs[scored])
                    reasons |= {absent[row]: reason for row, reason in failed.items()}
                    self.scored += len(scored)
            progress(len(shard) - len(absent))
        progress(len(hashes) - len(distinct))
        missing = np.full(len(label_words), np.nan)
        found = np.stack([missing if key in reasons else group.rows[key] for key in hashes])
        return found, {row: reasons[key] for row, key in enumerate(hashes) if key in reasons}

    def report(self) -> list[str]:
        """Return the report of the engine, e.g. on labels missing from server responses."""
        return list(getattr(self._scorer, "report", list)())

    def _free(self) -> None:
        self._scorer.close()
