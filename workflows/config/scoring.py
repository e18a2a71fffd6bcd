"""How prompts are scored: the engine, its options, and what of them decides the numbers."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from dcs.errors import plain_address
from dcs.io import Strict, as_value_error
from dcs.scoring import (
    LabelRule,
    Scorer,
    engine_names,
    engine_options,
    engine_packages,
    is_served,
    load_scorer,
    resolve_model,
)
from dcs.scoring.base import SCORING_VERSION
from dcs.scoring.cache import local_folder

#: What does not decide the numbers: where they are kept, how fast they come.
INDECISIVE = frozenset(
    {"store", "device", "tensor_parallel", "memory", "max_length", "concurrency", "key_variable"}
)


def _holds_no_secret(address: str) -> str:
    # Checked here too, before a plan or a record can repeat it.
    plain_address(address)
    return address


class ScoringSettings(Strict):
    """The part ``scoring:`` of a sweep, and the options of ``dcs generate``.

    Attributes
    ----------
    engine : "transformers", "vllm", "openai" or that of an installed package
        What runs the models; ``openai`` is any server of that protocol.
    label_rule : "auto", "mean", "first" or "joint"
        How label words of several tokens are read; see :data:`dcs.scoring.LabelRule`.
    dtype : str or None
        transformers, vllm: precision; by default bfloat16 on a GPU and float32 on a CPU.
    device : str or None
        transformers: ``cpu``, ``cuda:1``, ...; by default a GPU where there is one.
    tensor_parallel : int or None
        vllm: GPUs that share a model; an actor of a sweep holds as many.
    memory, max_length : float, int or None
        vllm: share of each GPU's memory to use, and most tokens of a prompt.
    base_url, api, top_logprobs, missing, concurrency : str, int or None
        openai: see :class:`dcs.scoring.openai.OpenAIScorer`.
    revision : str or None
        openai: exact version of the served model, where it is known.
    key_variable : str or None
        openai: environment variable with the API key, by default OPENAI_API_KEY.
    store : str or None
        Where scored prompts are kept: a local folder; by default beside the tables.
    """

    engine: str = "transformers"
    label_rule: LabelRule = "auto"
    dtype: str | None = None
    device: str | None = None
    tensor_parallel: int | None = Field(default=None, ge=1)
    memory: float | None = Field(default=None, gt=0.0, le=1.0)
    max_length: int | None = Field(default=None, ge=1)
    base_url: Annotated[str, AfterValidator(_holds_no_secret)] | None = None
    api: Literal["completions", "chat"] | None = None
    top_logprobs: int | None = Field(default=None, ge=1)
    missing: Literal["error", "bound", "zero"] | None = None
    concurrency: int | None = Field(default=None, ge=1)
    revision: str | None = None
    key_variable: str | None = None
    store: Annotated[str, AfterValidator(local_folder)] | None = None

    @model_validator(mode="after")
    def _fits_the_engine(self) -> ScoringSettings:
        allowed = as_value_error(engine_options, self.engine)
        for name in self.options:
            if name not in allowed:
                owners = [e for e in engine_names() if name in engine_options(e)]
                raise ValueError(
                    f"engine {self.engine} has no option {name!r}; it belongs to "
                    f"{' and '.join(owners)}"
                )
        return self

    @property
    def options(self) -> dict[str, Any]:
        """What is given to the engine: all that was set."""
        values = self.model_dump(exclude={"engine", "store"}, exclude_none=True)
        return {k: v for k, v in values.items() if (k, v) != ("label_rule", "auto")}

    def load(self, model: str) -> Scorer:
        """Load a model for scoring.

        Parameters
        ----------
        model : str
            Its name, or its folder.

        Returns
        -------
        Scorer
            Ready to score; to be closed.

        Raises
        ------
        ScoringError
            The model cannot be found or loaded.
        MissingDependencyError
            The engine is not installed.
        """
        return load_scorer(model, engine=self.engine, **self.options)

    def identity(self, model: str) -> dict[str, Any]:
        """Return what decides a model's numbers, as far as it shows without loading it.

        Engine and its installed version, the model's weights (their hash, or the name and
        revision of a model of the hub or a server), precision, label rule and the server's
        options. Where a model runs and how fast does not count.

        Parameters
        ----------
        model : str
            Its name, or its folder.

        Returns
        -------
        dict
            Plain JSON.

        Raises
        ------
        ScoringError
            The model cannot be found.
        """
        versions = {package: _installed(package) for package in engine_packages(self.engine)}
        named = model
        if not is_served(self.engine):
            reference = resolve_model(model)
            named = reference.revision or reference.name
        decisive = {k: v for k, v in self.options.items() if k not in INDECISIVE}
        if self.device is not None and self.device.startswith("cpu"):
            decisive.setdefault("dtype", "float32")  # which it would not be on a GPU
        return {
            "model": named,
            "engine": self.engine,
            "versions": versions,
            "scoring": SCORING_VERSION,
            "options": {"label_rule": self.label_rule} | decisive,
        }


def _installed(package: str) -> str:
    """Return the version of an importable package, also of one built under another name."""
    try:
        return version(package)
    except PackageNotFoundError:
        builds = packages_distributions().get(package, [])
        return " ".join(f"{build} {version(build)}" for build in sorted(builds)) or "absent"
