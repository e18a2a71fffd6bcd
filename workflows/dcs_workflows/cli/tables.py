"""``dcs tune``, ``pick``, ``evaluate`` and ``apply``: user-provided tables."""

from __future__ import annotations

import json
import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

import dcs
from dcs.errors import ConfigError, SchemeError, TableError, quoted, reason, show
from dcs_workflows.cli import options
from dcs_workflows.cli.console import conclude, console, progress_bar
from dcs_workflows.cli.options import argument, flag, option

if TYPE_CHECKING:
    import pandas as pd

    from dcs import CorrectionScheme, FittedScheme
    from dcs.data.columns import Reading
    from dcs.data.reader import Source
    from dcs_workflows.sources.joint import Rows

#: Suffixes of files of corrected rows.
_FORMATS = (".parquet", ".csv", ".tsv", ".jsonl")

#: Files beside a scheme, with its rows: its front, and the page of the result.
FRONT, RESULT = "front.json", "result.html"


def _scheme_file(path: Path) -> Path:
    return path / "scheme.json" if path.is_dir() else path


Scheme = Annotated[
    Path, argument("SCHEME", "scheme.json of dcs tune, or its folder.", callback=_scheme_file)
]
Written = Annotated[
    Path | None,
    option(
        "FILE",
        "File to write: .parquet, .csv, .tsv or .jsonl; - prints CSV.",
        "--output",
        "-o",
        show_default="beside the given one, in its format",
    ),
]
Prefer = Annotated[
    str | None,
    option(
        "NAME",
        "Point of the front: no-harm is the choice of balance if it is shown to cost no more "
        "accuracy than its margin, or the best that is; balance maximizes accuracy minus COBias; "
        "accuracy, balanced-accuracy, macro-f1 and weakest-class maximize that metric; offsets is "
        "balance among schemes that `dcs export` can turn into token biases.",
        show_default="no-harm",
    ),
]
Margin = Annotated[
    float | None,
    option(
        "POINTS",
        "Largest loss of accuracy that no-harm accepts, with 95 % confidence.",
        show_default="a tenth of the COBias removed, 0.5 to 2",
    ),
]
MaxAccuracyLoss = Annotated[
    float | None, option("POINTS", "Fairest scheme at most this far below best accuracy.")
]
MaxCobias = Annotated[float | None, option("POINTS", "Only schemes with at most this COBias.")]


def tune(
    tables: Annotated[
        list[Path],
        argument(
            "TABLE...",
            "Class probabilities and labels: .csv, .tsv, .jsonl, .parquet, .npz, or a folder "
            "of dcs generate. Several tables of the same rows, matched by id, get one joint "
            "scheme.",
        ),
    ],
    test: Annotated[
        list[Path] | None, option("TABLE", "Held-out table; by default 30 % of the rows.")
    ] = None,
    earlier: Annotated[
        Path | None,
        option(
            "SCHEME",
            "scheme.json of some of the rows: they stay fitted or held out as they were, "
            "only new rows are divided. The earlier scheme is evaluated as well.",
        ),
    ] = None,
    read: options.Read = None,
    method: Annotated[
        str,
        option(
            "NAME",
            "dcs, dnip (weights only), furud (memberships only), a baseline such as "
            "logistic-balanced, or a plug-in.",
        ),
    ] = "dcs",
    trials: Annotated[
        int | None, option("N", "Number of Optuna trials.", min=0, show_default="24")
    ] = None,
    prefer: Prefer = None,
    margin: Margin = None,
    max_accuracy_loss: MaxAccuracyLoss = None,
    max_cobias: MaxCobias = None,
    compare: Annotated[
        Any, option("NAME,...", "Methods to compare with.", parser=options.names)
    ] = None,
    settings: options.Settings = None,
    seed: Annotated[int, option("N", "Root random seed.", min=0)] = 0,
    replace_: Annotated[
        bool, flag("--replace", "Overwrite a scheme.json of other rows or options, or of a pick.")
    ] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    output: options.Output = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Find a correction scheme for probability tables and evaluate it on held-out rows.

    An Optuna study tunes the simulated annealing that searches for schemes and judges every
    trial by cross-validation. The scheme selected from its front is written to
    OUTPUT/TABLE-METHOD/scheme.json, unless that is the result of other rows or options, or of
    `dcs pick`, which `--replace` overwrites; all trials are recorded in MLflow. For several tables
    of the same rows, cross-validation selects one of them, their mean or a stack.

    Example: `dcs tune rows.csv --prefer balance --output runs`
    """
    from dcs.io import content_key
    from dcs_workflows.cli.views import show_tuned
    from dcs_workflows.cluster.sweep import run_here
    from dcs_workflows.config.sweep import TuneConfig, configured
    from dcs_workflows.plan import paths_by_name, plan_tuning
    from dcs_workflows.study.cell import read_as

    config = configured(
        TuneConfig,
        sets=settings,
        tuner__trials=trials,
        tuner__prefer=prefer,
        tuner__margin=margin,
        tuner__max_accuracy_loss=max_accuracy_loss,
        tuner__max_cobias=max_cobias,
        earlier=earlier,
    )
    members, earlier = paths_by_name(tables), config.earlier
    name = "+".join(members)
    plan, rows = plan_tuning(
        members,
        output,
        config=config,
        methods=[method, *(compare or ())],
        seed=seed,
        test=test or (),
        reading=options.reading(read),
    )
    # Loaded now, since it may be the one that is replaced.
    before = None if earlier is None else dcs.CorrectionScheme.load(earlier)
    if before is not None:
        _check_classes(f"--earlier {earlier}", before, rows["test"].classes)
    # A file name has at most 255 bytes.
    path = output / f"{name.encode()[:200].decode(errors='ignore')}-{method}" / "scheme.json"
    (cells,) = plan.cells.values()
    keys = {cell.method: cell.key for cell in cells}
    noted = {} if replace_ or not path.exists() else dcs.CorrectionScheme.load(path).provenance
    if noted.get("cell", keys[method]) != keys[method] or noted.get("picked"):
        raise ConfigError(
            f"{path}: is the result of other rows or options, or of dcs pick; add --replace to "
            f"overwrite it, --output FOLDER to keep both, and --earlier {path} if rows were added"
        )
    for line in plan.remarks:
        console.print(line)
    ((source, *_),) = plan.sources.values()
    with options.recording(
        tracking_uri,
        plan.config,
        params={"method": method},
        output=output,
        sweep_key=content_key({"cells": [*keys.values()]}),
        # What names the table, since all that are tuned are in one experiment.
        varies=("task",) if source.model == source.task else ("task", "model", "shots"),
        run_name=name,
    ) as recorder:
        with progress_bar(f"tuning {method}") as progress:
            run_here(plan, recorder, lambda share: progress(completed=share))
        records = {each: recorder.archive.read(key) for each, key in keys.items()}
        schemes = {k: dcs.CorrectionScheme.from_dict(each.scheme) for k, each in records.items()}
        # The same numbers may have been read, or scored, in another way.
        record, scheme = records[method], read_as(schemes[method], rows["optimization"])
        front = None if record.front is None else dcs.FittedScheme.from_dict(record.front)
        schemes = {"uncorrected": schemes.pop("icl"), **schemes}
        if before is not None:
            schemes["earlier"] = before
        console.print()
        show_tuned(name, rows, schemes)
        applied = _finish(path, scheme, front, rows)
        console.print(f"scheme written to {path}")
        if front is not None:
            console.print(f"result on one page: {path.with_name(RESULT)}")
        # Last, since opening the store takes longer than most results.
        with console.status("recording in MLflow"):
            report = recorder.finish()
    options.show_report(report, f"cell {record.key[:8]} in")
    console.print(f"next: {options.ui_command(output, tracking_uri)}, or {applied}", style="bold")
    summary = {
        "scheme": path.absolute(),
        "cell": record.key,
        "cells": len(cells),
        "metrics": dict(record.metrics),
        **asdict(report),
    }
    conclude(summary, pending=not report.complete)


def _check_classes(source: str, scheme: CorrectionScheme, classes: Sequence[str]) -> None:
    if scheme.classes != tuple(classes):
        raise SchemeError(
            f"{source}: is for the classes {quoted(scheme.classes)}, in this order; the rows have "
            f"{quoted(classes)}; order them with --read classes=A,B,..., or give it other rows"
        )


def _finish(
    path: Path,
    scheme: CorrectionScheme,
    front: FittedScheme | None,
    rows: Mapping[str, Rows | None],
) -> str:
    """Show a scheme and what held-out rows say of it; write it with its front, page and rows.

    Files of what there is none of now, but was of an earlier scheme, are removed. Returns the
    command that applies the scheme, with a placeholder for each of its tables.
    """
    from dcs.io import write_together
    from dcs.selection.page import report_of, verdict
    from dcs_workflows.cli.views import show_front
    from dcs_workflows.sources.held_out import FITTED, HELD_OUT
    from dcs_workflows.study.cell import predictions

    if front is not None:
        show_front(front, scheme)
    words, held_out, said = scheme.explain(), rows["test"], ""
    console.print("", *(f"  {sentence}" for sentence in words), "", sep="\n")
    if held_out is not None and held_out.labelled.any():
        known = held_out.only_labelled()
        said = verdict(*predictions(known, scheme), known.classes, known.copies)
        console.print(said, style="bold")
    places = [f"ROWS_{name}" for name in scheme.inputs] or ["ROWS"]
    command = shlex.join(["dcs", "apply", str(path), *places])
    folder = str(path.parent)
    page = front and report_of(front, name=folder, words=words, verdict=said, apply=command)
    files: dict[Path, Any] = {
        path.with_name(RESULT): page,
        path.with_name(FRONT): front and front.to_json(),
        path: scheme.to_json(),
    }
    for file, split in ((FITTED, "optimization"), (HELD_OUT, "test")):
        files[path.with_name(file)] = getattr(rows[split], "write", None)
    write_together(files)
    return command


def pick(
    scheme: Scheme,
    prefer: Prefer = None,
    margin: Margin = None,
    max_accuracy_loss: MaxAccuracyLoss = None,
    max_cobias: MaxCobias = None,
) -> None:
    """Pick another point of the front that dcs tune wrote beside a scheme, without refitting.

    The scheme is overwritten.

    Example: `dcs pick dcs-runs/reviews-dcs --max-accuracy-loss 1`
    """
    from dcs.evaluation.drift import describe_rows
    from dcs_workflows.sources.held_out import FITTED, HELD_OUT
    from dcs_workflows.study.cell import evidence, predictions

    old, front = dcs.CorrectionScheme.load(scheme), scheme.with_name(FRONT)
    if not front.exists():
        raise SchemeError(
            f"{front}: does not exist; dcs tune writes a front only for methods that compare "
            "settings by cross-validation or development rows, such as dcs"
        )
    before = dcs.FittedScheme.load(front)
    asked: dict[str, Any] = {"prefer": prefer, "margin": margin}
    asked |= {"max_accuracy_loss": max_accuracy_loss, "max_cobias": max_cobias}
    picked = before.pick(dcs.Preference(**{k: v for k, v in asked.items() if v is not None}))
    new = picked.scheme
    # Rows and input tables are those of the previous scheme.
    provenance = {**old.provenance, **new.provenance}
    new = replace(new, combination=old.combination, inputs=old.inputs)
    files = (scheme.with_name(name) for name in (FITTED, HELD_OUT))
    fitted, held_out = (dcs.ProbabilityTable.read(f) if f.exists() else None for f in files)
    # Schemes of several tables have no reference.
    if "reference" in provenance:
        found = evidence(picked, *predictions(held_out, new), len(new.classes))
        provenance["held_out"] = {**found, "effect": provenance["held_out"].get("effect", 1.0)}
        own = fitted and (fitted.probs, new.predict(fitted.probs), fitted.copies)
        provenance["reference"] = own and describe_rows(*own)
    if picked.preference != before.preference:
        # dcs tune does not overwrite it.
        provenance["picked"] = True
    new = replace(new, provenance=provenance)
    _finish(scheme, new, picked, {"optimization": fitted, "test": held_out})
    same = picked.chosen == before.chosen
    console.print(
        f"{scheme}: {'unchanged, the same' if same else 'now another'} point of the front"
    )


def evaluate(
    table: Annotated[Path, argument("TABLE", "Class probabilities and labels; see dcs tune.")],
    scheme: Annotated[
        list[Path] | None, option("SCHEME", "Scheme to evaluate; repeatable.", "--scheme", "-s")
    ] = None,
    read: options.Read = None,
) -> None:
    """Evaluate a table, uncorrected and corrected by schemes: metrics, intervals, paired tests.

    Example: `dcs evaluate new.csv -s runs/a-dcs/scheme.json -s runs/a-batch/scheme.json`
    """
    from dcs_workflows.cli.views import show_judgement, warn_of_fitted_rows

    loaded = {path: dcs.CorrectionScheme.load(path) for path in scheme or ()}
    first = next(iter(loaded.values()), None)
    (source,) = open_rows([table], options.reading(read), first).values()
    rows = source.table.only_labelled(source=str(table))
    by = rows.provenance.corrected_by
    plain = "uncorrected" if by is None else "corrected"
    schemes = {plain: dcs.CorrectionScheme.identity(rows.classes)}
    for path, each in loaded.items():
        # Schemes of dcs tune are named by their folders.
        name = path.resolve().parent.name if path.stem == "scheme" else path.stem
        if len(each.inputs) > 1:
            raise ConfigError(
                f"{path}: requires the tables {quoted(each.inputs)}; correct them with dcs "
                "apply, then evaluate its output"
            )
        _check_classes(str(path), each, rows.classes)
        schemes[str(path) if name in schemes else name] = each
    show_judgement(f"{table.name}: % of {rows.n_rows} rows", rows, schemes)
    if by is not None:
        console.print(f"corrected by {by}: optimistic on rows it was fitted on", style="yellow")
    warn_of_fitted_rows(rows, loaded)


def open_rows(
    files: Sequence[Path], given: Reading, scheme: CorrectionScheme | None
) -> dict[str, Source]:
    """Read files as those that a scheme was fitted on, by path; print what is inferred.

    Raises
    ------
    SchemeError
        If a file has the name of another table of the fit.
    TableError
        If there is a scheme, and a file has been corrected already.
    """
    from dcs.data.reader import as_reading, open_source
    from dcs_workflows.sources.given import refuse_corrected, source_name

    found: dict[str, Source] = {}
    inputs = () if scheme is None else scheme.inputs
    for file, name in zip_longest(files, inputs[: len(files)]):
        known = None
        if scheme is not None:
            tables = scheme.provenance.get("tables", {})
            if name is not None and (own := source_name(file)) != name and own in tables:
                raise SchemeError(
                    f"the scheme expects its tables in the order {quoted(inputs)}; {file}: "
                    f"{show(own)} is another table of the fit than {show(name)}"
                )
            noted = scheme.provenance if name is None else tables.get(name, {})
            reading = noted.get("reading") or {"classes": scheme.classes}
            known = as_reading(reading, source="scheme: reading")
        path = file / "test.parquet" if file.is_dir() else file
        source = open_source(path, given, known=known)
        if scheme is not None:
            table = noted.get("table", {}) if name is None else noted
            _refuse_positions(source, given, table.get("prompt", {}).get("task", {}), str(file))
            about = f"{file}: the scheme is for other classes"
            source = replace(source, table=source.table.with_classes(scheme.classes, source=about))
            refuse_corrected(source.table, file)
        if source.remark:
            console.print(source.remark)
        found[str(file)] = source
    return found


def _refuse_positions(source: Source, given: Reading, task: Mapping[str, Any], file: str) -> None:
    """Refuse labels that were read as positions, if the task of the fit gives them a meaning."""
    place = task.get("files") or task.get("hub") or {}
    values = place.get("labels") or task.get("labels") or ()
    named = zip(task.get("classes", ()), values, strict=False)
    labels = {name: [*map(str, own)] for name, own in named}
    first = {"from-0": 0, "from-1": 1}.get(source.reading.labels or "")
    if not labels or first is None or given.labels is not None:
        return
    for position, name in enumerate(source.table.classes, first):
        if str(position) not in labels[name]:
            raise TableError(
                f"{file}: {show(name)} is label {position} by its position, and "
                f"{quoted(labels[name])} in the task of the fit; write the names of the classes, "
                f"or specify --read labels=from-{first}"
            )


def apply(
    scheme: Scheme,
    files: Annotated[
        list[Path],
        argument(
            "ROWS...",
            "Class probabilities in any form of dcs tune, labelled or not; - reads CSV or "
            "JSON lines from standard input. A scheme of several tables requires as many, in the "
            "order of tuning.",
        ),
    ],
    output: Written = None,
    read: options.Read = None,
) -> None:
    """Write the corrected probabilities of rows, labelled or not.

    Files are read as those that the scheme was fitted on. Class columns are replaced by columns
    `corrected:CLASS`, a column `predicted` with the class is added, and all other columns of a
    single file are kept; of several, id and label are.

    Example: `dcs apply dcs-runs/rows-dcs/scheme.json new.csv -o corrected.csv`
    """
    import pandas as pd

    from dcs.data.columns import CORRECTED
    from dcs.data.reader import refuse_other_texts, texts_by_id
    from dcs.selection.ensemble import TableEnsemble, mean_of
    from dcs_workflows.cli.views import warn_of_fitted_rows
    from dcs_workflows.sources.held_out import FITTED, HELD_OUT

    if len({file.resolve() for file in files}) < len(files):
        raise ConfigError(f"{', '.join(map(str, files))}: a table is given twice; give each once")
    correction, rows = dcs.CorrectionScheme.load(scheme), files[0]
    own = (scheme, *(scheme.with_name(name) for name in (FITTED, HELD_OUT)))
    target = target_of(rows, output, "corrected", others=(*files, *own))
    # Rows that are printed must not be mixed with messages.
    console.stderr = str(target) == "-"
    sources = open_rows(files, options.reading(read), correction)
    first, *_ = sources.values()
    table, frame, before = first.table, first.frame, first.table.probs
    if len(correction.inputs) > 1 or len(files) > 1:
        refuse_other_texts({name: texts_by_id(each) for name, each in sources.items()})
        tables = [(name, each.table) for name, each in sources.items()]
        ensemble = TableEnsemble.of(correction, tables)
        table, before = ensemble.combined(correction), ensemble.combined(mean_of(ensemble)).probs
        # The tables are combined already, so only the correction remains.
        correction = replace(correction, combination=None, inputs=())
        labels = [table.classes[k] if k >= 0 else None for k in table.labels]
        frame = pd.DataFrame({"id": list(table.ids), "label": labels})
    others = frame.drop(columns=[*(first.reading.columns or ())], errors="ignore")
    refuse_columns([CORRECTED + name for name in correction.classes], others, rows)
    write_corrected(others, target, first.reading, correction, table.probs)
    warn_of_fitted_rows(table, {scheme: correction})
    changed = int((correction.predict(table.probs) != before.argmax(axis=1)).sum())
    console.print(f"{target}: {table.n_rows} rows, {changed} predictions changed")
    if table.labelled.any() and str(target) != "-":
        console.print(f"next: dcs evaluate {shlex.quote(str(target))}", style="bold")


def target_of(rows: Path, output: Path | None, what: str, *, others: Sequence[Path] = ()) -> Path:
    """Return the output, by default a file beside the rows, in their format, but none of these."""
    suffix = rows.suffix if rows.suffix in _FORMATS else ".parquet"
    target = output or rows.parent / f"{rows.stem}-{what}{suffix}"
    if str(output or rows) == "-":
        return Path("-")
    if target.resolve() in [file.resolve() for file in (rows, *others)]:
        raise ConfigError(
            f"--output {target}: is read as well, and would lose columns or rows; give another"
        )
    if target.suffix not in _FORMATS:
        raise ConfigError(f"--output {target}: must end in {', '.join(_FORMATS)}, or be -")
    if output is None and target.exists():
        raise ConfigError(f"{target}: exists; give -o {target} to replace it, or another file")
    return target


def refuse_columns(added: Iterable[str], there: Container[str], source: Path) -> None:
    """Raise ConfigError if rows have a column that is to be added, as an earlier output has."""
    if taken := [name for name in added if name in there]:
        raise ConfigError(
            f"{source}: has the columns {quoted(taken, 3)} already, which the output would have "
            "twice; drop or rename them"
        )


def write_corrected(
    rows: pd.DataFrame,
    path: Path,
    reading: Reading,
    scheme: CorrectionScheme,
    probs: NDArray[np.float64],
) -> None:
    """Write rows with corrected probabilities and predicted classes, in the format of a path."""
    import pandas as pd
    import pyarrow as pa

    from dcs.data.columns import CORRECTED
    from dcs.io import atomic_write, inert

    names = [CORRECTED + each for each in scheme.classes]
    corrected = pd.DataFrame(scheme.apply(probs), columns=names, index=rows.index)
    frame = pd.concat([rows, corrected], axis=1)
    predicted = "predicted"
    while predicted in frame:
        predicted += "_corrected"
    frame[predicted] = [scheme.classes[k] for k in scheme.predict(probs)]
    if path.suffix == ".parquet":
        try:
            data = frame.to_parquet()
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise TableError(
                f"--output {path}: Parquet cannot store a column: {reason(error)}; use .jsonl"
            ) from None
        atomic_write(path, data)
    elif path.suffix == ".jsonl":
        # pandas would round to 15 digits. Missing values (NaN) do not equal themselves.
        each = ({k: None if v != v else v for k, v in r.items()} for r in frame.to_dict("records"))
        atomic_write(path, "".join(f"{json.dumps(row, default=str)}\n" for row in each))
    else:
        frame[predicted] = frame[predicted].map(inert)
        separator = "\t" if path.suffix == ".tsv" else reading.separator or ","
        text = frame.to_csv(index=False, sep=separator, decimal=reading.decimal or ".")
        if str(path) == "-":
            typer.echo(text, nl=False)
        else:
            atomic_write(path, text)
