"""What goes into the runs of a cell: names, parameters, files. Pure functions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tracking import schema
from tracking.environment import git_commit, user_name
from tracking.records import CellRecord, TrialRecord
from tracking.results import tables
from tracking.results.frames import objective_label, own_setting, trial_score

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, Param


def chosen(record: CellRecord, trials: str | int) -> list[TrialRecord]:
    if trials == "all":
        return list(record.trials)
    if trials == "none" or isinstance(trials, str):
        return []
    sign = -1.0 if record.direction == "maximize" else 1.0
    # A trial without a score, or with one that is no number, is never among the best.
    scores = {
        trial.number: score
        for trial in record.trials
        if (score := trial_score(trial)) is not None and score == score
    }
    ranked = sorted(
        (trial for trial in record.trials if trial.number in scores),
        key=lambda trial: (sign * scores[trial.number], trial.number),
    )
    return sorted(ranked[:trials], key=lambda trial: trial.number)


def thin(length: int, limit: int) -> list[int]:
    """Return at most `limit` indices of ``range(length)``, evenly spread, both ends kept."""
    if length <= limit or length <= 2:
        return list(range(length)) if limit > 0 else []
    if limit < 2:
        return [length - 1][:limit]
    return sorted({round(i * (length - 1) / (limit - 1)) for i in range(limit)})


def cell_name(record: CellRecord) -> str:
    who = record.identity
    parts = [str(who[name]) for name in ("method", "task") if name in who]
    if "shots" in who:
        parts.append(f"{who['shots']}-shot")
    if "seed" in who:
        parts.append(f"seed {who['seed']}")
    if "model" in who:
        parts.append(str(who["model"]))
    return ", ".join(filter(None, (" ".join(parts) or record.key, own_setting(record))))


def setting_tags(record: CellRecord) -> dict[str, str]:
    """Return the tags of what ablations vary, in words; of uncorrected cells only the rows."""
    size = record.identity.get(schema.OPTIMIZATION_SIZE)
    values = {
        schema.OBJECTIVE: objective_label(record),
        schema.OPTIMIZATION_SIZE: "full" if size is None else size,
    }
    return {f"dcs.{name}": str(value) for name, value in values.items() if value is not None}


def cell_files(record: CellRecord) -> dict[str, str]:
    files = {
        schema.CELL_FILE: record.to_json(),
        schema.PROVENANCE_FILE: json.dumps(record.provenance, indent=2, sort_keys=True),
    }
    if record.scheme is not None:
        files[schema.SCHEME_FILE] = json.dumps(record.scheme, indent=2)
    if record.class_accuracies:
        files[schema.CLASS_ACCURACIES_FILE] = tables.columns_json(record.class_accuracies)
    if record.trials:
        files[schema.TRIALS_FILE] = tables.columns_json(tables.trial_columns(record.trials))
    if record.error:
        files[schema.TRACEBACK_FILE] = record.error
    return files


def datasets(record: CellRecord) -> list[DatasetInput]:
    """Return the tables that a cell was tuned and tested on, as MLflow's datasets.

    The numbers stay where they are: name, digest, size and provenance are logged.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    described = record.provenance.get("tables", {})
    classes = [str(name) for name in record.class_accuracies.get("class", [])]
    columns = [{"type": "double", "name": f"p:{name}", "required": True} for name in classes]
    columns.append({"type": "long", "name": "label", "required": True})
    inputs = []
    for split, digest_name in (("optimization", "optimization_digest"), ("test", "test_digest")):
        digest = record.identity.get(digest_name)
        if digest is None:
            continue
        about = described.get(split, {}) if isinstance(described, Mapping) else {}
        who = [str(record.identity[name]) for name in ("task", "model") if name in record.identity]
        tags = {name: str(value) for name, value in {**about, "digest": digest}.items()}
        dataset = Dataset(
            name=schema.shorten(" ".join([*who, split]), 500),
            digest=str(digest)[: schema.DATASET_DIGEST_LIMIT],
            # A kind of source that MLflow can read back: a table made by a program.
            source_type="code",
            source=json.dumps({"tags": tags}),
            schema=json.dumps({"mlflow_colspec": columns}),
            profile=json.dumps({"num_rows": about.get("rows"), "num_classes": len(classes)}),
        )
        inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", split)]))
    return inputs


def logged_tables(names: Iterable[str]) -> str:
    # The form and the order of the keys that `mlflow.load_table` searches for.
    return json.dumps([{"path": name, "type": "table"} for name in names])


def authorship(source: str) -> dict[str, str]:
    tags = {
        "mlflow.user": user_name(),
        "mlflow.source.name": source,
        "mlflow.source.type": "LOCAL",
    }
    commit = git_commit()
    return tags | ({"mlflow.source.git.commit": commit} if commit else {})


def texts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    flat = schema.flatten(values)
    names = schema.safe_names(flat)
    for name, value in flat.items():
        text = value if isinstance(value, str | int | float) else json.dumps(value)
        yield names[name], schema.shorten(text, schema.PARAM_LIMIT)


def params(texts: Mapping[str, str]) -> list[Param]:
    from mlflow.entities import Param

    return [Param(name, text) for name, text in texts.items()]


def now() -> int:
    return time.time_ns() // 1_000_000
