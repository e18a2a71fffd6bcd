"""Settings of prompt scoring: the engine, its options, and those that determine its numbers."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, create_model, model_validator

from dcs.errors import ConfigError, check_choice, origin, served_revision
from dcs.io import validated
from dcs.plugins import plugin_version
from dcs.scoring import PACKAGED_ENGINES, Scorer, engine_trait, load_scorer, resolve_model
from dcs.scoring.base import SCORING_VERSION
from dcs.scoring.cache import local_folder
from dcs.scoring.models import loaded_revision

#: Options that are recorded only where they differ.
_DEFAULTS = {"label_rule": "auto", "prompt": "auto"}

#: The options of all packaged engines; one that is not set has the default of the engine. What
#: other engines accept is checked below.
_Options: Any = create_model(
    "_Options",
    __config__=ConfigDict(extra="allow", frozen=True, allow_inf_nan=False, strict=True),
    **{  # type: ignore[call-overload]
        name: (field.rebuild_annotation() | None, _DEFAULTS.get(name))
        for engine in PACKAGED_ENGINES
        for name, field in engine_trait(engine, "options").model_fields.items()
    },
)


class ScoringSettings(_Options):  # type: ignore[misc]
    """The section ``scoring:`` of a sweep, and the options of ``dcs generate``.

    The options are those of the engine: of a packaged one as declared in
    :mod:`dcs.scoring.base`, of another one as its class declares them.

    Attributes
    ----------
    engine : "transformers", "vllm", "openai" or the engine of an installed package
        Runs the models; ``openai`` is any server with an OpenAI-compatible API.
    store : str or None
        Local folder in which scored prompts are stored; by default next to the tables.
    """

    engine: str = "transformers"
    store: Annotated[str, AfterValidator(local_folder)] | None = None

    @model_validator(mode="after")
    def _has_known_options(self) -> ScoringSettings:
        accepted = engine_trait(self.engine, "options")
        for name in {*self.options, *(self.model_extra or ())}:
            what = f"option of engine {self.engine}"
            check_choice(what, name, ("engine", "store", *accepted.model_fields))
        validated(accepted, self.options, source=f"engine {self.engine}", error=ConfigError)
        if self.base_url is not None:
            served_revision(self.base_url, self.revision)
        return self

    @property
    def gpus(self) -> int | None:
        """Number of GPUs that the engine reserves for a model; None if any number will do."""
        option = engine_trait(self.engine, "gpu_option")
        return None if option is None else self.options.get(option, 1)

    @property
    def indecisive(self) -> frozenset[str]:
        """Options that do not affect the numbers, only storage and speed."""
        return frozenset({"store", *engine_trait(self.engine, "indecisive")})

    @property
    def options(self) -> dict[str, Any]:
        """The options that are set, as passed to the engine."""
        left_out = {"engine", "store"}
        return dict(self.model_dump(exclude=left_out, exclude_none=True, exclude_defaults=True))

    @property
    def recorded(self) -> dict[str, Any]:
        """The engine and the options that are set, as they may be recorded: plain JSON."""
        return dict(self.model_dump(mode="json", include={"engine", *self.options}))

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

    def commit(self, model: str) -> str:
        """Return the commit of a hub model in the local cache; empty where there is none."""
        if engine_trait(self.engine, "served") or plugin_version("dcs.engines", self.engine):
            return ""
        reference = resolve_model(model)
        if reference.revision is not None or find_spec("huggingface_hub") is None:
            return ""
        found = loaded_revision(reference)
        return "" if found == "unknown" else found

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
        packages = engine_trait(self.engine, "packages")
        versions = {package: _find_version(package) for package in packages}
        plugged = plugin_version("dcs.engines", self.engine)
        if own := plugged or engine_trait(self.engine, "version"):
            versions[self.engine] = own
        named = model
        if not engine_trait(self.engine, "served"):
            reference = resolve_model(model)
            named = reference.revision or reference.name
        decisive = {k: v for k, v in self.options.items() if k not in self.indecisive}
        if self.base_url is not None:
            decisive["base_url"] = origin(self.base_url)
        if self.device is not None and self.device.startswith("cpu"):
            decisive.setdefault("dtype", "float32")  # a GPU defaults to bfloat16
        return {
            "model": named,
            "engine": self.engine,
            "versions": versions,
            "scoring": SCORING_VERSION,
            "options": _DEFAULTS | decisive,
        }


def _find_version(package: str) -> str:
    """Return the version of an importable package, even if distributed under another name."""
    try:
        return version(package)
    except PackageNotFoundError:
        builds = packages_distributions().get(package, [])
        return " ".join(f"{build} {version(build)}" for build in sorted(builds)) or "absent"
