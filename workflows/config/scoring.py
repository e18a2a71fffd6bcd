"""Settings of prompt scoring: the engine, its options, and those that determine its numbers."""

from __future__ import annotations

from functools import partial
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainSerializer, model_validator

from dcs.errors import origin, plain_address, served_revision
from dcs.io import Strict, as_value_error
from dcs.plugins import plugin_version
from dcs.prompting.prompts import AnswerPrefix
from dcs.scoring import (
    JointScore,
    LabelRule,
    PromptStyle,
    Scorer,
    engine_options,
    engine_packages,
    is_served,
    load_scorer,
    resolve_model,
)
from dcs.scoring.answers import MissingRule
from dcs.scoring.base import SCORING_VERSION
from dcs.scoring.cache import local_folder

#: Options that do not affect the numbers, only storage and speed.
INDECISIVE = frozenset(
    {
        *("store", "device", "tensor_parallel", "memory", "max_length"),
        *("concurrency", "retries", "timeout", "key_variable"),
    }
)

#: Options that only the engines with the default of another value need to have.
_DEFAULTS = (
    ("label_rule", "auto"),
    ("joint", "sum"),
    ("prompt", "auto"),
    ("answer_prefix", "user"),
)


def _check_address(address: str) -> str:
    # Checked here too, before the address is written to a plan or a record.
    plain_address(address)
    return address


class ScoringSettings(Strict):
    """The section ``scoring:`` of a sweep, and the options of ``dcs generate``.

    Attributes
    ----------
    engine : "transformers", "vllm", "openai" or the engine of an installed package
        Runs the models; ``openai`` is any server with an OpenAI-compatible API.
    label_rule : "auto", "mean", "first" or "joint"
        How label words of several tokens are scored; see :data:`dcs.scoring.LabelRule`.
    joint : "sum", "mean" or "unconditional"
        How the rule ``joint`` scores a word; see :data:`dcs.scoring.JointScore`.
    prompt : "auto", "completion" or "chat"
        Plain text, or chat messages by the chat template of the model; ``auto`` is ``chat`` if
        the model has a template. See :data:`dcs.scoring.PromptStyle`.
    answer_prefix : "user", "assistant" or "none"
        Whose turn in a chat holds the answer prefix; see :data:`dcs.prompting.AnswerPrefix`.
    dtype : str or None
        transformers, vllm: precision; by default bfloat16 on a GPU and float32 on a CPU.
    device : str or None
        transformers: ``cpu``, ``cuda:1``, ...; by default a GPU if available.
    tensor_parallel : int or None
        vllm: number of GPUs per model; reserved by each actor of a sweep.
    memory, max_length : float, int or None
        vllm: fraction of GPU memory to use, and maximum number of tokens of a prompt.
    base_url, api, top_logprobs, missing, concurrency, retries, timeout : optional
        openai: see :class:`dcs.scoring.openai.OpenAIScorer`.
    votes, temperature, max_tokens : int, float, int or None
        Number of answers to sample for each prompt instead of reading log-probabilities, their
        temperature, and their maximum number of tokens.
    revision : str or None
        openai: exact version of the served model, if known.
    key_variable : str or None
        openai: environment variable with the API key; by default OPENAI_API_KEY.
    store : str or None
        Local folder in which scored prompts are stored; by default next to the tables.
    """

    engine: str = "transformers"
    label_rule: LabelRule = "auto"
    joint: JointScore = "sum"
    prompt: PromptStyle = "auto"
    answer_prefix: AnswerPrefix = "user"
    dtype: str | None = None
    device: str | None = None
    tensor_parallel: int | None = Field(default=None, ge=1)
    memory: float | None = Field(default=None, gt=0.0, le=1.0)
    max_length: int | None = Field(default=None, ge=1)
    # JSON is what is recorded: without the path, which may contain a key.
    base_url: (
        Annotated[str, AfterValidator(_check_address), PlainSerializer(origin, when_used="json")]
        | None
    ) = None
    api: Literal["completions", "chat"] | None = None
    top_logprobs: int | None = Field(default=None, ge=1)
    missing: MissingRule | None = None
    votes: int | None = Field(default=None, ge=1, le=1000)
    temperature: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, ge=1)
    concurrency: int | None = Field(default=None, ge=1)
    retries: int | None = Field(default=None, ge=0)
    timeout: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    revision: str | None = None
    key_variable: str | None = None
    store: Annotated[str, AfterValidator(local_folder)] | None = None

    @model_validator(mode="after")
    def _has_known_options(self) -> ScoringSettings:
        allowed = as_value_error(engine_options, self.engine)
        for name in self.options:
            if name not in allowed:
                raise ValueError(
                    f"engine {self.engine} has no option {name!r}; it has {', '.join(allowed)}"
                )
        if self.base_url is not None:
            as_value_error(partial(served_revision, revision=self.revision), self.base_url)
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The options that are set, as passed to the engine."""
        values = self.model_dump(exclude={"engine", "store"}, exclude_none=True)
        return {k: v for k, v in values.items() if (k, v) not in _DEFAULTS}

    def load(self, model: str) -> Scorer:
        """Load a model for scoring.

        Parameters
        ----------
        model : str
            Model name or folder.

        Returns
        -------
        Scorer
            The loaded model; must be closed by the caller.

        Raises
        ------
        ScoringError
            If the model cannot be found or loaded.
        MissingDependencyError
            If the engine is not installed.
        """
        return load_scorer(model, engine=self.engine, **self.options)

    def identity(self, model: str) -> dict[str, Any]:
        """Return what determines a model's numbers, as far as known without loading it.

        Contains the engine and its installed version, the model's weights (their hash, or the
        name and revision of a hub or served model), precision, label rule and the options of the
        server. Options that only affect placement and speed are excluded.

        Parameters
        ----------
        model : str
            Model name or folder.

        Returns
        -------
        dict
            Plain JSON.

        Raises
        ------
        ScoringError
            If the model cannot be found.
        """
        versions = {package: _find_version(package) for package in engine_packages(self.engine)}
        if (own := plugin_version("dcs.engines", self.engine)) is not None:
            versions[self.engine] = own
        named = model
        if not is_served(self.engine):
            reference = resolve_model(model)
            named = reference.revision or reference.name
        decisive = {k: v for k, v in self.options.items() if k not in INDECISIVE}
        if self.base_url is not None:
            decisive["base_url"] = origin(self.base_url)
        if self.device is not None and self.device.startswith("cpu"):
            decisive.setdefault("dtype", "float32")  # a GPU defaults to bfloat16
        return {
            "model": named,
            "engine": self.engine,
            "versions": versions,
            "scoring": SCORING_VERSION,
            "options": dict(_DEFAULTS) | decisive,
        }


def _find_version(package: str) -> str:
    """Return the version of an importable package, even if distributed under another name."""
    try:
        return version(package)
    except PackageNotFoundError:
        builds = packages_distributions().get(package, [])
        return " ".join(f"{build} {version(build)}" for build in sorted(builds)) or "absent"
