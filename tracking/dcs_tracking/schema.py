"""Names used in MLflow: tags, kinds, artifact files. docs/tracking.md explains them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dcs.evaluation.metrics import METRICS

KIND: Final = "dcs.kind"
KIND_SWEEP: Final = "sweep"
KIND_CELL: Final = "cell"
KIND_MEAN: Final = "mean"
KIND_SCORING: Final = "scoring"
KIND_MODEL: Final = "model"

SWEEP: Final = "dcs.sweep"
SWEEP_KEY: Final = "dcs.sweep_key"
CELL_KEY: Final = "dcs.cell_key"
TABLE_KEY: Final = "dcs.table_key"
RECORD_DIGEST: Final = "dcs.record_digest"
DIGESTS: Final = ("table_digest", "optimization_digest", "test_digest")
MEAN_OF: Final = "dcs.mean_of"
IDENTITY_TAGS: Final = ("model", "task", "shots", "seed", "method")
OBJECTIVE: Final = "objective"
OPTIMIZATION_SIZE: Final = "optimization_size"
SETTING_TAGS: Final = (OBJECTIVE, OPTIMIZATION_SIZE)

PARENT: Final = "mlflow.parentRunId"
NOTE: Final = "mlflow.note.content"
LOGGED_ARTIFACTS: Final = "mlflow.loggedArtifacts"


def tagged(tags: Mapping[str, str]) -> str:
    """Return the MLflow filter for runs with these tags."""
    return " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())


def without_rows(identity: Mapping[str, Any]) -> str:
    """Return the identity of a cell as text, except for that of its rows."""
    return json.dumps({k: v for k, v in identity.items() if k not in DIGESTS}, sort_keys=True)


def logged_tables(paths: Iterable[str]) -> dict[str, str]:
    """Return the tag by which `mlflow.load_table` finds the tables of a run."""
    # It requires this order of keys.
    return {LOGGED_ARTIFACTS: json.dumps([{"path": path, "type": "table"} for path in paths])}


#: Metrics of a cell: those worth a chart. The artifact `CELL_FILE` has all.
SHOWN_METRICS: Final = tuple(f"test/{name}" for name, each in METRICS.items() if each.compared)


def task_metric(name: str, task: object) -> str:
    """Return the name of a metric of the cells of one task: ``cobias on trec``.

    A digest tells tasks apart whose names differ in characters that MLflow does not allow.
    """
    plain = f"{name.removeprefix('test/')} on {task}"
    allowed = safe_name(plain.replace("/", " "))
    if allowed == plain:
        return plain
    return f"{allowed[: NAME_LIMIT - 7]} {hashlib.sha256(plain.encode()).hexdigest()[:6]}"


CELL_FILE: Final = "cell.json"
SCHEME_FILE: Final = "scheme.json"
TRIALS_FILE: Final = "trials.json"
TABLES_FOLDER: Final = "tables"
FIGURES_FOLDER: Final = "figures"

TRIAL_PREFIX: Final = "trial/"

_NOT_ALLOWED = re.compile(r"[^/\w.\- :]")
NAME_LIMIT: Final = 250
PARAM_LIMIT: Final = 6000
TAG_LIMIT: Final = 8000
DATASET_DIGEST_LIMIT: Final = 36


def safe_name(name: str) -> str:
    """Return a name that MLflow accepts for a metric or parameter.

    Names of tasks and settings may contain any character; MLflow allows letters, digits,
    ``_ - . : /`` and spaces in names that are normalized paths.
    """
    parts = [part for part in _NOT_ALLOWED.sub("_", name).split("/") if part]
    named = [part if part.strip(".") else "_" * len(part) for part in parts]
    return "/".join(named)[:NAME_LIMIT].rstrip("/") or "_"


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted names, without values that are None."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif value is not None:
            flat[prefix + name] = value
    return flat


def as_params(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as parameters of a run."""
    flat = flatten(values).items()
    plain = {k: v if isinstance(v, str | int | float) else json.dumps(v) for k, v in flat}
    return {safe_name(name): shorten(value, PARAM_LIMIT) for name, value in plain.items()}


def shorten(value: object, limit: int) -> str:
    """Return `value` as text of at most `limit` characters."""
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
