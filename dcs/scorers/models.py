"""Which model a name means: the packaged one, a local folder, or a model of the hub."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from dcs._messages import suggest
from dcs.errors import ScoringError

__all__ = ["PACKAGED_MODELS", "ModelReference", "resolve_model"]

PACKAGED_MODELS = ("tiny_lm",)

_ASSETS = Path(__file__).parents[1] / "assets"
_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w][\w./-]*))?")
# What decides a model's numbers; notes beside it do not.
_DECISIVE = re.compile(
    r".*\.(safetensors|bin|model)|config\.json|tokenizer.*\.json|vocab\..*|merges\.txt"
)
_WHOLE = 64 * 2**20  # bytes: larger files are hashed by samples
_SAMPLES = 64
_SAMPLE_SIZE = 2**20


@dataclass(frozen=True, slots=True)
class ModelReference:
    """A model that has been found, not loaded.

    Parameters
    ----------
    name : str
        As it was given.
    location : str
        A local folder, or a hub id.
    revision : str or None
        Hash of a local folder's weights, settings and tokenizer; None for a hub id, whose
        commit is known when it is loaded.
    version : str or None
        Branch, tag or commit of the hub that was asked for; None is its main branch.
    """

    name: str
    location: str
    revision: str | None
    version: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether the model is a folder on this machine, so that nothing may be fetched."""
        return self.revision is not None


def resolve_model(model: str | os.PathLike[str]) -> ModelReference:
    """Find out which model a name means. Loads and fetches nothing.

    Parameters
    ----------
    model : str or path-like
        ``"tiny_lm"`` (the packaged demonstration model), a folder in the Transformers form, or
        a hub id ``owner/name``, perhaps with a branch, tag or commit: ``owner/name@v1.0``. A
        folder goes before a hub id of the same name.

    Returns
    -------
    ModelReference
        Where it is.

    Raises
    ------
    ScoringError
        If it is none of these.
    """
    name = os.fspath(model)
    folder = _ASSETS / name if name in PACKAGED_MODELS else Path(name).expanduser()
    if folder.exists():
        if not (folder / "config.json").is_file():
            raise ScoringError(
                f"model {name!r} is not a model folder: it has no config.json; give a folder "
                "as written by save_pretrained"
            )
        return ModelReference(name, str(folder), _folder_revision(folder))
    found = _HUB_ID.fullmatch(name)
    if found is not None:
        return ModelReference(name, found[1], None, found[2])
    raise ScoringError(
        f"model {name!r} not found{suggest(name, PACKAGED_MODELS)}: give "
        f"{', '.join(PACKAGED_MODELS)}, an existing model folder, or a hub id owner/name"
    )


def _folder_revision(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and _DECISIVE.fullmatch(path.name):
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            _add_content(digest, path)
    return f"sha256:{digest.hexdigest()[:16]}"


def _add_content(digest: hashlib._Hash, path: Path) -> None:
    size = path.stat().st_size
    if size <= _WHOLE:
        digest.update(path.read_bytes())
        return
    # Reading all of a 70-billion-parameter model would take minutes, and other weights differ
    # everywhere: evenly spaced pieces, the header included, tell them apart.
    with path.open("rb") as file:
        for sample in range(_SAMPLES):
            file.seek((size - _SAMPLE_SIZE) * sample // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_SIZE))
