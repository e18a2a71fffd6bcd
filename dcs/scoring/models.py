"""Finding devices, and loading models and tokenizers, with errors of one line."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcs.errors import (
    ConfigError,
    MissingDependencyError,
    ScoringError,
    hub_advice,
    named,
    suggest,
)
from dcs.scoring.base import Tokenizer

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


def resolve_model(model: ModelReference | str | os.PathLike[str]) -> ModelReference:
    """Find out which model a name means. Loads and fetches nothing.

    Parameters
    ----------
    model : str or path-like
        ``"tiny_lm"`` (the packaged demonstration model), a folder in the Transformers form, or
        a hub id ``owner/name``, perhaps with a branch, tag or commit: ``owner/name@v1.0``. A
        folder goes before a hub id of the same name. One that has been found is returned.

    Returns
    -------
    ModelReference
        Where it is.

    Raises
    ------
    ScoringError
        If it is none of these.
    """
    if isinstance(model, ModelReference):
        return model
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
    # Reading all of a 70-billion-parameter model would take minutes, and other weights differ
    # everywhere: evenly spaced pieces, the header included, tell them apart.
    last = size - _SAMPLE_SIZE
    samples = [last * sample // (_SAMPLES - 1) for sample in range(_SAMPLES)]
    with path.open("rb") as file:
        for start in samples if size > _WHOLE else range(0, size, _SAMPLE_SIZE):
            file.seek(start)
            digest.update(file.read(_SAMPLE_SIZE))


def require(package: str, install: str = "") -> Any:
    """Import a package that an engine needs, or say how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingDependencyError(
            f"{package} is not installed ({error}): pip install {install or package}"
        ) from None


def _find_device(torch: Any, device: str | None) -> Any:
    """Return the torch device of that name, by default a GPU where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ScoringError(
            f"device {device!r} cannot be used here; give cpu, or cuda where torch finds a GPU"
        ) from None
    return found


def load_tokenizer(model: str | os.PathLike[str]) -> Tokenizer:
    """Load a model's tokenizer alone; that of a packaged model in no time.

    Raises
    ------
    ScoringError
        If the model cannot be found or its tokenizer cannot be loaded.
    MissingDependencyError
        If transformers is not installed.
    """
    reference = resolve_model(model)
    if reference.name in PACKAGED_MODELS:
        # Without transformers, which takes seconds to import.
        path = os.path.join(reference.location, "tokenizer.json")
        plain = require("tokenizers").Tokenizer.from_file(path)
        return Tokenizer(
            lambda text: list(plain.encode(text).ids),
            lambda token: str(plain.decode([token], skip_special_tokens=False)),
        )
    transformers = require("transformers")
    with _loading(reference, transformers):
        loaded = transformers.AutoTokenizer.from_pretrained(
            reference.location, revision=reference.version
        )
    return Tokenizer(loaded.encode, lambda token: str(loaded.decode([token])))


def loaded_revision(reference: ModelReference) -> str:
    """Return the exact version of a model that has just been loaded.

    For a model of the hub it is the commit, read off the folder of its files; Transformers says
    no more which one it took.
    """
    if reference.revision is not None:
        return reference.revision
    hub = importlib.import_module("huggingface_hub")
    path = hub.try_to_load_from_cache(
        reference.location, "config.json", revision=reference.version
    )
    return Path(path).parent.name if isinstance(path, str) else "unknown"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model of Transformers in memory, and its tokenizer.

    Parameters
    ----------
    weights, tokenizer : PreTrainedModel, PreTrainedTokenizerFast
        The two.
    name, revision : str
        What they are called.
    """

    weights: Any
    tokenizer: Any
    name: str
    revision: str = "unknown"


def load_model(reference: ModelReference, *, device: str | None, dtype: str | None) -> LoadedModel:
    """Load tokenizer and model, from what has been fetched before if it is there.

    Parameters
    ----------
    reference : ModelReference
        The model.
    device, dtype : str, optional
        By default a GPU where there is one; bfloat16 there, and float32 on a CPU.

    Raises
    ------
    ConfigError
        If there is no such precision.
    ScoringError
        If the model cannot be loaded, or the device cannot be used or has too little memory.
    MissingDependencyError
        If torch or transformers is not installed.
    """
    torch, transformers = require("torch"), require("transformers")
    place = _find_device(torch, device)
    precision = dtype or ("bfloat16" if place.type == "cuda" else "float32")
    kind = getattr(torch, precision, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ConfigError(f"dtype {precision!r}: allowed are bfloat16, float16 and float32")

    def load(local_files_only: bool) -> tuple[Any, Any]:
        options = {"revision": reference.version, "local_files_only": local_files_only}
        tokenizer = transformers.AutoTokenizer.from_pretrained(reference.location, **options)
        return tokenizer, transformers.AutoModelForCausalLM.from_pretrained(
            reference.location, dtype=kind, **options
        )

    with _loading(reference, transformers):
        try:
            # What has been fetched before is used as it is: the same weights on every run.
            tokenizer, model = load(local_files_only=True)
        except OSError:
            if reference.is_local:
                raise
            hub = importlib.import_module("huggingface_hub")
            # One question without retries: out of reach is known in seconds, not in a minute.
            hub.get_session().head(hub.constants.ENDPOINT, timeout=10)
            tokenizer, model = load(local_files_only=False)
    try:
        weights = model.to(place)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ScoringError(
            f"model {reference.name!r} does not fit into the memory of {place}; use the "
            "engine vllm with several GPUs (tensor_parallel), or another precision (dtype)"
        ) from None
    return LoadedModel(weights, tokenizer, reference.name, loaded_revision(reference))


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether torch, or a library below it, has run out of memory."""
    # On a CPU torch raises a plain RuntimeError, and so do the libraries below it on a GPU.
    return isinstance(error, require("torch").OutOfMemoryError) or any(
        sign in str(error) for sign in ("allocate memory", "ALLOC_FAILED")
    )


@contextmanager
def _loading(reference: ModelReference, transformers: Any) -> Iterator[None]:
    """Load quietly, and say in one line why it failed."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as error:
        # Tokenizer, weights and network libraries raise errors of many unrelated classes.
        advice = (
            "give a folder as written by save_pretrained, tokenizer included"
            if reference.is_local
            else f"there is no folder of that name either; {hub_advice(error)}"
        )
        where = "from its folder" if reference.is_local else "from the model hub"
        raise ScoringError(
            f"model {reference.name!r} cannot be loaded {where} ({named(error)}); {advice}"
        ) from error
    finally:
        if shown:
            logging.enable_progress_bar()
