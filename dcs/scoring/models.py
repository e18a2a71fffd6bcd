"""Resolve and load models, tokenizers and devices, with one-line errors."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcs.errors import HUB_ADVICE, MissingDependencyError, ScoringError, check_choice, named
from dcs.scoring.chat import PromptStyle, Tokenizer
from dcs.scoring.labels import read_label_words

PACKAGED_MODELS = ("tiny_lm",)

_ASSETS = Path(__file__).parents[1] / "assets"

_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w][\w./-]*))?")

# Files that determine the numbers of a model; others, such as README.md, are not hashed.
_HASHED_FILES = re.compile(
    r".*\.(safetensors|bin|model)|config\.json|tokenizer.*\.json|chat_template.*|vocab\..*|merges\.txt"
)

_WHOLE_FILE_LIMIT = 64 * 2**20  # bytes; larger files are hashed by samples

_SAMPLES = 64

_SAMPLE_SIZE = 2**20


@dataclass(frozen=True, slots=True)
class ModelReference:
    """A model that has been located but not loaded.

    Parameters
    ----------
    name : str
        Name as specified by the user.
    location : str
        A local folder, or a hub id.
    revision : str or None
        Hash of the weights, settings and tokenizer of a local folder; None for a hub id, whose
        commit is only known after loading.
    version : str or None
        Requested branch, tag or commit on the hub; None means the main branch.
    """

    name: str
    location: str
    revision: str | None
    version: str | None = None


def resolve_model(model: str | os.PathLike[str]) -> ModelReference:
    """Resolve a model name without loading or downloading anything.

    Parameters
    ----------
    model : str or path-like
        ``"tiny_lm"`` (the packaged demonstration model), a folder in the Transformers format,
        or a hub id ``owner/name`` with an optional branch, tag or commit: ``owner/name@v1.0``. A
        folder takes precedence over a hub id.

    Returns
    -------
    ModelReference
        The located model.

    Raises
    ------
    ScoringError
        If the name matches none of these.
    """
    name = os.fspath(model)
    folder = _ASSETS / name if name in PACKAGED_MODELS else Path(os.path.expanduser(name))
    if folder.exists():
        if not (folder / "config.json").is_file():
            raise ScoringError(
                f"model {name!r} is not a model folder: config.json does not exist; give a folder "
                "written by save_pretrained"
            )
        return ModelReference(name, str(folder), _folder_revision(folder))
    found = _HUB_ID.fullmatch(name)
    if found is not None:
        return ModelReference(name, found[1], None, found[2])
    raise ScoringError(
        f"model {name!r} not found: give {', '.join(PACKAGED_MODELS)}, an existing model folder, "
        "or a hub id owner/name"
    )


def _folder_revision(folder: Path) -> str:
    digest = hashlib.sha256()
    paths = (path for path in folder.iterdir() if _HASHED_FILES.fullmatch(path.name))
    for path in sorted(filter(Path.is_file, paths)):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        # Reading a 70-billion-parameter model in full would take minutes. Different weights differ
        # everywhere, so evenly spaced samples including the header distinguish them.
        last = size - _SAMPLE_SIZE
        samples = [last * sample // (_SAMPLES - 1) for sample in range(_SAMPLES)]
        with path.open("rb") as file:
            for start in samples if size > _WHOLE_FILE_LIMIT else range(0, size, _SAMPLE_SIZE):
                file.seek(start)
                digest.update(file.read(_SAMPLE_SIZE))
    return f"sha256:{digest.hexdigest()[:16]}"


def require(package: str, install: str = "'dcs-debias[models]'") -> Any:
    """Import a package required by an engine; if it is missing, raise with the install command."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingDependencyError(
            f"{package} is not installed ({error}): pip install {install}"
        ) from None


def load_tokenizer(model: str | os.PathLike[str], prompt: PromptStyle = "auto") -> Tokenizer:
    """Load only the tokenizer of a model.

    Parameters
    ----------
    model : str or path-like
        See :func:`resolve_model`.
    prompt : "auto", "completion" or "chat"
        How prompts are rendered.

    Raises
    ------
    ScoringError
        If the model cannot be found or its tokenizer cannot be loaded.
    MissingDependencyError
        If transformers is not installed.
    """
    reference = resolve_model(model)
    transformers = require("transformers")
    with _loading_errors(reference, transformers):
        options = {"revision": reference.version}
        loaded = transformers.AutoTokenizer.from_pretrained(reference.location, **options)
    return Tokenizer.of(loaded, reference.name, prompt)


def loaded_revision(reference: ModelReference) -> str:
    """Return the exact version of a loaded model.

    For a hub model this is the commit, taken from the name of its cache folder, because
    Transformers no longer reports it.
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
    """A causal Transformers language model in memory, with its tokenizer.

    Parameters
    ----------
    weights, tokenizer : PreTrainedModel, PreTrainedTokenizerFast
        The model and its tokenizer.
    name, revision : str
        Model name and the exact version of its weights.
    """

    weights: Any
    tokenizer: Any
    name: str
    revision: str = "unknown"


def load_model(reference: ModelReference, *, device: str | None, dtype: str | None) -> LoadedModel:
    """Load tokenizer and model, from the local cache if possible.

    Parameters
    ----------
    reference : ModelReference
        The model.
    device, dtype : str, optional
        By default a GPU if available, with bfloat16; float32 on a CPU.

    Raises
    ------
    ScoringError
        If the model cannot be loaded, or the device is not available or has too little memory.
    MissingDependencyError
        If torch or transformers is not installed.
    """
    torch, transformers = require("torch"), require("transformers")
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        # Before the weights are read, which takes minutes.
        on_gpu = torch.empty(1, device=place).is_cuda
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ScoringError(
            f"device {place!r} is not available; use cpu, or cuda if torch.cuda.is_available()"
        ) from None
    precision = dtype or ("bfloat16" if on_gpu else "float32")

    def load(local_files_only: bool) -> tuple[Any, Any]:
        options = {"revision": reference.version, "local_files_only": local_files_only}
        tokenizer = transformers.AutoTokenizer.from_pretrained(reference.location, **options)
        causal = transformers.AutoModelForCausalLM
        return tokenizer, causal.from_pretrained(reference.location, dtype=precision, **options)

    with _loading_errors(reference, transformers):
        try:
            # Prefer cached files, so that every run uses the same weights.
            tokenizer, model = load(local_files_only=True)
        except OSError:
            if reference.revision is not None:
                raise
            hub = importlib.import_module("huggingface_hub")
            # Check reachability once without retries: fail in seconds instead of a minute.
            hub.get_session().head(hub.constants.ENDPOINT, timeout=10)
            tokenizer, model = load(local_files_only=False)
    try:
        weights = model.to(place)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ScoringError(
            f"model {reference.name!r} does not fit into the memory of {place}; use "
            "engine vllm with several GPUs (tensor_parallel), or another precision (dtype)"
        ) from None
    return LoadedModel(weights, tokenizer, reference.name, loaded_revision(reference))


def is_out_of_memory(error: Exception) -> bool:
    """Return whether torch or an underlying library ran out of memory."""
    # torch raises a plain RuntimeError on a CPU, as do the underlying libraries on a GPU.
    told = any(sign in str(error) for sign in ("allocate memory", "ALLOC_FAILED"))
    return told or isinstance(error, require("torch").OutOfMemoryError)


@contextmanager
def _loading_errors(reference: ModelReference, transformers: Any) -> Iterator[None]:
    """Hide progress bars and convert loading errors to a one-line ScoringError."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as error:
        # Tokenizer, weight and network libraries raise errors of many unrelated classes.
        advice = "give a folder written by save_pretrained, including the tokenizer"
        if reference.revision is None:
            advice = f"no folder has this name; of the model hub: {HUB_ADVICE}"
        raise ScoringError(
            f"model {reference.name!r} cannot be loaded ({named(error)}); {advice}"
        ) from error
    finally:
        if shown:
            logging.enable_progress_bar()


def first_tokens(
    label_words: Sequence[str], *, model: str | None = None, encoding: str | None = None
) -> list[list[int]]:
    """Return the tokens with which each label word may begin, with and without a space before it.

    Parameters
    ----------
    label_words : sequence of str
        The answer of each class.
    model, encoding : str, optional
        A model with a local tokenizer, or an encoding of tiktoken.

    Raises
    ------
    ScoringError
        If two label words begin with the same token.
    MissingDependencyError
        If tiktoken is not installed.
    """
    if encoding is None:
        tokenizer = load_tokenizer(str(model))
    else:
        tiktoken = require("tiktoken", "tiktoken")
        check_choice("encoding", encoding, tiktoken.list_encoding_names())
        encode = tiktoken.get_encoding(encoding)
        tokenizer = Tokenizer(encode.encode_batch, lambda token: str(encode.decode([token])))
    spaced = ([space + word for word in label_words] for space in (" ", ""))
    found = [read_label_words(tokenizer, "Answer:", words, "first")[0] for words in spaced]
    return [list(dict.fromkeys(ids[0] for ids in own)) for own in zip(*found, strict=True)]
