"""``dcs import``, ``tune``, ``pick``, ``evaluate``, ``apply``, ``check``: tables of one's own."""

from __future__ import annotations

import csv
import io
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dcs
from dcs.errors import ConfigError, SchemeError, TableError, listing, reason, show
from workflows.cli import options
from workflows.cli.console import console, new_table, progress_bar
from workflows.cli.options import Results

if TYPE_CHECKING:
    import pandas as pd

    from dcs import CorrectionScheme
    from dcs.evaluation.drift import Drift
    from dcs.selection.ensemble import TableEnsemble

#: Beside a scheme: the front it is picked from, and the same setting fitted on all labelled rows.
FRONT, REFITTED = "front.json", "refitted.json"

Scheme = Annotated[Path, typer.Argument(metavar="SCHEME", help="scheme.json of dcs tune.")]
Normalise = Annotated[
    bool, typer.Option("--normalise", help="Divide each row by its sum instead of refusing.")
]
Prefer = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Point of the front: no-harm is the fairest that costs no accuracy beyond noise, "
        "balance has the best accuracy minus COBias, knee lies where the price of fairness "
        "starts to rise; accuracy, balanced-accuracy, macro-f1 and weakest-class have the best "
        "figure of that name.",
        show_default="no-harm",
    ),
]
ExchangeRate = Annotated[
    float | None,
    typer.Option(help="Points of accuracy that a point of COBias is worth, e.g. 0.25."),
]
MaxAccuracyLoss = Annotated[
    float | None,
    typer.Option(
        metavar="POINTS", help="The fairest scheme at most so far below the best accuracy."
    ),
]
MaxCobias = Annotated[
    float | None,
    typer.Option(metavar="POINTS", help="Keep to schemes with at most this COBias."),
]


def _names(text: str) -> list[str]:
    """Return names between commas or on lines; one that holds a comma stands in double quotes."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [name.strip() for row in rows for name in row]


def import_(
    context: typer.Context,
    format: Annotated[str, typer.Argument(metavar="FORMAT", help="What the file is.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file or folder to read.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="TABLE",
            help="The Parquet file to write; a folder for all tables, where PATH holds several.",
        ),
    ],
    normalise: Normalise = False,
    logits: Annotated[
        bool, typer.Option("--logits", help="The values are logits: apply a softmax.")
    ] = False,
    classes: Annotated[
        Any,
        typer.Option(
            parser=_names, metavar="A,B,...", help="Class names, in the order of columns."
        ),
    ] = None,
    id_column: Annotated[str | None, typer.Option(help="Column of the row names.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of the true classes.")] = None,
    class_columns: Annotated[
        Any,
        typer.Option(parser=_names, metavar="A,B,...", help="Columns of the probabilities."),
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="Which table of a folder, such as optimization or test.")
    ] = None,
    filter: Annotated[
        str | None, typer.Option(help="lm-eval: which filter's responses to read.")
    ] = None,
    targets: Annotated[
        Literal["auto", "index", "text"], typer.Option(help="lm-eval: what targets are.")
    ] = "auto",
    model: Annotated[
        str | None, typer.Option("--origin-model", help="Model to note as the origin.")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--origin-task", help="Task to note as the origin.")
    ] = None,
) -> None:
    """Turn class probabilities from elsewhere into a probability table.

    Example: `dcs import csv rows.csv -o rows.parquet --class-columns good,bad`
    """
    from dcs.data.importers import import_tables, the_table

    said = ("format", "path", "output", "part")
    options = {k: v for k, v in context.params.items() if k not in said}
    found = import_tables(format, path, **options)
    tables = {output / f"{name}.parquet": table for name, table in found.items()}
    if output.suffix == ".parquet":
        tables = {output: the_table(found, part, path)}
    elif part is not None or (len(found) == 1 and not path.is_dir()):
        raise ConfigError(f"--output {output}: one table is written here; end it in .parquet")
    for file, table in tables.items():
        table.write(file)
        judged = "none has a label"
        if table.labelled.any():
            labelled = table.only_labelled()
            metrics = dcs.ClassificationMetrics.from_predictions(
                labelled.labels, labelled.probs.argmax(axis=1), table.n_classes
            )
            judged = f"accuracy {100 * metrics.accuracy:.1f} %, COBias {100 * metrics.cobias:.1f}"
            if labelled.n_rows < table.n_rows:
                judged += f" of the {labelled.n_rows} labelled rows"
        console.print(
            f"{file}: {table.n_rows} rows, {table.n_classes} classes "
            f"({', '.join(table.classes)}); {judged}"
        )
    pair = {"optimization", "test"} <= found.keys() and len(tables) > 1
    named = shlex.quote(str(output if pair else next(iter(tables))))
    console.print(f"next: dcs tune {named}", style="bold")


def tune(
    tables: Annotated[
        list[Path],
        typer.Argument(
            metavar="TABLE...",
            help="Probability table (see dcs import), .npz archive, or folder of dcs generate. "
            "Several of the same rows, matched by id, get one scheme.",
        ),
    ],
    test: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="TABLE",
            help="Table for the final figures; by default 30 % of TABLE are held out.",
        ),
    ] = None,
    unlabelled: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="TABLE",
            help="Rows without labels that the fit uses too; for each table, in their order.",
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="dcs, dnip (weights only), furud (memberships only), a baseline or a plug-in: "
            "see below.",
        ),
    ] = "dcs",
    trials: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Settings for Optuna to try beside the standard ones.",
            show_default="0; 30 of a study",
        ),
    ] = None,
    prefer: Prefer = None,
    exchange_rate: ExchangeRate = None,
    max_accuracy_loss: MaxAccuracyLoss = None,
    max_cobias: MaxCobias = None,
    compare: Annotated[
        Any,
        typer.Option(
            parser=_names,
            metavar="NAME,...",
            help="Methods to judge beside it on the same rows, e.g. logistic-balanced,batch.",
        ),
    ] = None,
    refit: Annotated[
        bool,
        typer.Option(
            "--refit",
            help="Fit the chosen setting on all labelled rows too, those held out among them: "
            f"{REFITTED}, to be used from then on.",
        ),
    ] = False,
    learning_curve: Annotated[
        bool,
        typer.Option(
            "--learning-curve",
            help="Fit to 10, 30, 100, ... labelled rows too, by themselves and with all others "
            "unlabelled: how many labels are needed.",
        ),
    ] = False,
    settings: options.Settings = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Root seed of all that is random.")
    ] = 0,
    output: options.Output = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Find the correction scheme of probability tables, judge it on held-out rows, keep it.

    Schemes are searched by simulated annealing and chosen among by cross-validation; with
    --set tuner.protocol=study by an Optuna study judged on 5 % development rows. The chosen one
    is written to OUTPUT/TABLE-METHOD/scheme.json, all that was tried to MLflow. Of several tables
    of the same rows, cross-validation decides whether one alone, their mean or a stack is taken.

    Example: `dcs tune rows.parquet --prefer knee --output runs`
    """
    from dcs.io import content_key
    from dcs.selection.ensemble import inputs_of
    from workflows.cli import views
    from workflows.cluster.sweep import run_here
    from workflows.config.sweep import TuneConfig, configured
    from workflows.plan import called, plan_tuning
    from workflows.tuning.cell import refitted

    config = configured(
        TuneConfig,
        {},
        source="command line",
        sets=settings or (),
        tuner__trials=trials,
        tuner__prefer=prefer,
        tuner__exchange_rate=exchange_rate,
        tuner__max_accuracy_loss=max_accuracy_loss,
        tuner__max_cobias=max_cobias,
    )
    members = called(tables)
    name = "+".join(members)
    plan, rows = plan_tuning(
        members,
        output,
        config=config,
        methods=[method, *(compare or ())],
        seed=seed,
        test=test or (),
        unlabelled=unlabelled or (),
        refit=refit,
        learning_curve=learning_curve,
    )
    with options.recording(
        tracking_uri,
        output=output,
        tracking=config.tracking,
        experiment="tune",
        sweep_key=content_key({"cells": [c.key for cells in plan.cells.values() for c in cells]}),
        sweep_params={"table": name, "method": method, "seed": seed, **config.tuner.model_dump()},
        run_name=name,
    ) as recorder:
        with progress_bar(f"tuning {method}") as progress:
            cells = run_here(plan, recorder, lambda share: progress(completed=share))
        with console.status("recording in MLflow"):
            report = recorder.finish()

    records = [recorder.archive.read(cell.key) for cell in cells]
    whole = [record for record in records if record.identity["optimization_size"] is None]
    found = {record.identity["method"]: record for record in whole}
    schemes = {each: dcs.CorrectionScheme.from_dict(found[each].scheme) for each in found}
    record, scheme = found[method], schemes[method]
    front = None if record.front is None else dcs.FittedScheme.from_dict(record.front)
    path = output / f"{name}-{method}" / "scheme.json"
    replaced = path.exists() and dcs.CorrectionScheme.load(path) != scheme
    scheme.save(path)
    path.with_name(FRONT).unlink(missing_ok=True)
    if front is not None:
        front.save(path.with_name(FRONT))
    console.print()
    views.show_tuned(name, rows, {"uncorrected": schemes.pop("icl")} | schemes)
    if learning_curve:
        views.show_learning_curve(records, method, path.with_name("learning_curve.svg"))
    if front is not None:
        views.show_front(front)
    elif rows["test"].labelled.any() and (price := views.cost_of(record)):
        console.print(price, style="yellow")
    _print_paragraph(scheme.explain(inputs_of(scheme, rows["test"])))
    console.print(report.message)
    console.print(Results(output, tracking_uri).link(record.key))
    console.print(f"scheme written to {path}{', in place of another' if replaced else ''}")
    if refit:
        path = path.with_name(REFITTED)
        single = [each for each in rows.values() if isinstance(each, dcs.ProbabilityTable)]
        with console.status("fitting on all rows"):
            refitted(record, single).save(path)
        console.print(f"the same setting fitted on all labelled rows written to {path}")
    elif replaced:
        _warn_of_refitted(path)
    given = dict(zip(members, test or tables, strict=True))
    used = [given[each] for each in scheme.inputs or members]
    rest = "ROWS" if used[0].is_dir() else shlex.join(map(str, used))
    console.print(
        f"next: dcs apply {shlex.quote(str(path))} {rest} -o corrected.parquet, or "
        f"{options.ui_command(output, tracking_uri)}",
        style="bold",
    )


def _print_paragraph(sentences: Sequence[str]) -> None:
    console.print("", *(f"  {sentence}" for sentence in sentences), "", sep="\n")


def pick(
    scheme: Annotated[
        Path,
        typer.Argument(
            metavar="SCHEME", help="scheme.json of dcs tune, or its folder; it is written anew."
        ),
    ],
    prefer: Prefer = None,
    exchange_rate: ExchangeRate = None,
    max_accuracy_loss: MaxAccuracyLoss = None,
    max_cobias: MaxCobias = None,
) -> None:
    """Pick another point of the front that dcs tune kept beside a scheme; nothing is fitted.

    Example: dcs pick dcs-runs/reviews-dcs --max-accuracy-loss 1
    """
    from workflows.cli.views import show_front

    path = scheme / "scheme.json" if scheme.is_dir() else scheme
    if path.name == REFITTED:
        raise ConfigError(f"{path}: was fitted on all rows; pick from the scheme.json beside")
    old, front = dcs.CorrectionScheme.load(path), path.with_name(FRONT)
    if not front.exists():
        raise SchemeError(
            f"{front}: no such file, so nothing to pick from; dcs tune keeps a front of what it "
            "chooses by cross-validation, which is a scheme of dcs, dnip or furud"
        )
    before = dcs.FittedScheme.load(front)
    wanted: Any = prefer or "no-harm"
    picked = before.pick(dcs.Preference(wanted, exchange_rate, max_accuracy_loss, max_cobias))
    new = picked.scheme
    # What rows and tables it is of stays.
    provenance = {**old.provenance, **new.provenance}
    new = replace(new, combination=old.combination, inputs=old.inputs, provenance=provenance)
    new.save(path)
    picked.save(front)
    show_front(picked)
    _print_paragraph(new.explain())
    if picked.chosen == before.chosen:
        console.print(f"{path}: the same point as before")
    else:
        changes = (
            f"{title} {100 * getattr(before.chosen, name):.1f} -> "
            f"{100 * getattr(picked.chosen, name):.1f}"
            for name, title in (("accuracy", "accuracy"), ("lasting_cobias", "COBias"))
        )
        console.print(f"{path} is another point now: {', '.join(changes)}")
        _warn_of_refitted(path)


def _warn_of_refitted(path: Path) -> None:
    """Say where a scheme fitted on all rows is that of the scheme before."""
    if (earlier := path.with_name(REFITTED)).exists():
        told = "is of the scheme before; dcs tune --refit renews it"
        console.print(f"{earlier} {told}", style="yellow")


def evaluate(
    table: Annotated[
        Path,
        typer.Argument(metavar="TABLE", help="Probability table or .npz archive; see dcs import."),
    ],
    scheme: Annotated[
        list[Path] | None,
        typer.Option(
            "--scheme", "-s", metavar="SCHEME", help="Judge this scheme too; repeatable."
        ),
    ] = None,
) -> None:
    """Judge a table as it is and corrected by schemes: figures, intervals, paired tests.

    Example: dcs evaluate new.parquet -s runs/a-dcs/scheme.json -s runs/a-batch/scheme.json
    """
    from workflows.cli.views import show_judgement, warn_of_fitted_rows

    rows = _read_table(table).only_labelled(source=str(table))
    schemes = {"uncorrected": dcs.CorrectionScheme.identity(rows.classes)}
    for path in scheme or ():
        # Schemes of dcs tune are told apart by their folders.
        name = path.resolve().parent.name if path.stem == "scheme" else path.stem
        loaded = dcs.CorrectionScheme.load(path)
        if len(loaded.inputs) > 1:
            raise ConfigError(
                f"{path}: takes the tables {listing(loaded.inputs)}; correct them with dcs apply, "
                "and evaluate what it writes"
            )
        found = loaded.for_classes(rows.classes, source=str(path))
        schemes[str(path) if name in schemes else name] = found
    show_judgement(f"{table.name}: % of {rows.n_rows} rows", rows, schemes)
    warn_of_fitted_rows(rows, schemes)


def apply(
    scheme: Scheme,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="ROWS...",
            help="Probability table, .npz archive, or Parquet, .csv or .jsonl with a column per "
            "class, named as the class or p:CLASS; - reads CSV from the standard input. A scheme "
            "of several tables takes as many probability tables, in the order it was tuned with.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write: .parquet, .csv or .jsonl; - prints CSV.",
        ),
    ],
    normalise: Normalise = False,
) -> None:
    """Write the corrected probabilities of rows, which need no labels.

    A probability table becomes one of the same form. In other files the columns of the classes
    are corrected, those besides stay, and a column `predicted` names the class.

    Example: `dcs apply dcs-runs/rows-dcs/scheme.json new.csv -o corrected.csv`
    """
    import pandas as pd

    from dcs.selection.ensemble import mean_of

    correction, rows = dcs.CorrectionScheme.load(scheme), files[0]
    table = plain = None
    if len(correction.inputs) > 1 or len(files) > 1:
        ensemble = _inputs_of(correction, files, normalise=normalise)
        correction = correction.for_classes(ensemble.classes, source=str(scheme))
        table, plain = ensemble.combined(correction), ensemble.combined(mean_of(ensemble)).probs
        # What is left to do is to correct one table.
        correction = replace(correction, combination=None, inputs=())
    elif rows.suffix == ".npz" or (output.suffix == ".parquet" == rows.suffix and _is_table(rows)):
        table = _read_table(rows, normalise=normalise)
    if table is None:
        frame = _read_rows(rows)
        columns = _class_columns(frame, correction.classes, rows)
        # Whatever is no number is refused as NaN is.
        ids = [*map(str, frame["id"])] if "id" in frame else []
        probs = dcs.ProbabilityTable.from_arrays(
            frame[columns].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=float),
            None,
            classes=correction.classes,
            ids=ids if 0 < len({*ids}) == len(ids) else None,
            normalise=normalise,
            source=str(rows),
        ).probs
    else:
        correction = correction.for_classes(table.classes, source=str(scheme))
        frame, probs = pd.DataFrame({"id": table.ids}), table.probs
        columns = [f"p:{name}" for name in table.classes]
    predicted = correction.predict(probs)
    if table is not None and output.suffix == ".parquet":
        table.with_probs(correction.apply(probs)).write(output)
    else:
        frame[columns] = correction.apply(probs)
        frame["predicted"] = [correction.classes[k] for k in predicted]
        _write_rows(frame, output)
    if str(output) != "-":
        before = probs if plain is None else plain
        changed = int((predicted != before.argmax(axis=1)).sum())
        console.print(f"{output}: {len(probs)} rows, {changed} predictions changed")
    if table is not None and output.suffix == ".parquet":
        console.print(f"next: dcs evaluate {shlex.quote(str(output))}", style="bold")


def _inputs_of(
    scheme: CorrectionScheme, files: Sequence[Path], *, normalise: bool = False
) -> TableEnsemble:
    """Return the tables that a scheme takes, checked to be those it is for."""
    from dcs.selection.ensemble import TableEnsemble

    tables = [(str(file), _read_table(file, normalise=normalise)) for file in files]
    return TableEnsemble.of(scheme, tables)


def _read_table(path: Path, *, normalise: bool = False) -> dcs.ProbabilityTable:
    from dcs.data.importers import import_file, read_tables, the_table

    if path.suffix == ".npz":
        return import_file("npz", path, normalise=normalise)
    return the_table(read_tables(path), None, path)


def _is_table(path: Path) -> bool:
    """Return whether a Parquet file has the columns of a probability table and no others."""
    from dcs.data.table import open_parquet

    with open_parquet(path) as file:
        schema = file.schema_arrow
    others = sorted(name for name in schema.names if not name.startswith("p:"))
    return others == ["id", "label"] and str(schema.field("label").type).startswith("int")


def _read_rows(path: Path) -> pd.DataFrame:
    import pandas as pd

    from dcs.data.importers import text_of
    from dcs.data.table import open_parquet

    # Whatever is no probability stays what it is: of itself, pandas makes floats of integers in a
    # column that lacks some, and takes columns away as its index.
    if path.suffix == ".parquet":
        with open_parquet(path) as file:
            table: pd.DataFrame = file.read().to_pandas(
                types_mapper=pd.ArrowDtype, ignore_metadata=True
            )
        return table
    text = sys.stdin.read() if str(path) == "-" else text_of(path)
    if path.suffix == ".jsonl":
        lines = enumerate(text.split("\n"), 1)
        rows = [
            _json_row(line, f"{path}: line {number}") for number, line in lines if line.strip()
        ]
        return pd.DataFrame(rows, dtype=object)
    separator = max(",;\t", key=text.partition("\n")[0].count)
    try:
        cells = pd.read_csv(
            io.StringIO(text), header=None, sep=separator, dtype=str, keep_default_na=False
        )
    except ValueError as error:
        raise TableError(f"{path}: cannot be read as rows: {reason(error)}") from None
    return cells[1:].set_axis(cells.iloc[0].tolist(), axis=1)


def _json_row(line: str, source: str) -> dict[str, Any]:
    from dcs.io import parse_json

    row = parse_json(line, source=source, error=TableError, finite=False)
    if not isinstance(row, dict):
        raise TableError(f"{source}: is {show(row)}; an object with a key per column is needed")
    return row


def _class_columns(frame: pd.DataFrame, classes: tuple[str, ...], path: Path) -> list[str]:
    # One form for all: a class may be called p:odd.
    forms = [f"p:{name}" for name in classes], list(classes)
    best = min(forms, key=lambda form: len({*form} - {*frame}))
    if lacking := [column for column in best if column not in frame]:
        raise TableError(
            f"{path}: no column {lacking[0]!r}; the scheme needs one for each class, all "
            "named as the class or all p:<class>; its columns are "
            f"{listing(list(map(str, frame.columns)))}"
        )
    if "predicted" in best:
        raise TableError(
            f"{path}: the predictions would replace the class 'predicted'; name all columns of "
            "classes p:<class>"
        )
    if not frame.columns.is_unique:
        raise TableError(f"{path}: two columns have one name; rename one")
    return best


def _write_rows(frame: pd.DataFrame, path: Path) -> None:
    import pyarrow as pa

    from dcs.io import atomic_write_bytes, atomic_write_text

    if path.suffix == ".parquet":
        try:
            data = frame.to_parquet()
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise TableError(
                f"--output {path}: Parquet cannot hold a column: {reason(error)}; give .jsonl"
            ) from None
        atomic_write_bytes(path, data)
    elif path.suffix == ".jsonl":
        # pandas would round to 15 digits. What is missing does not equal itself.
        rows = ({k: None if v != v else v for k, v in r.items()} for r in frame.to_dict("records"))
        atomic_write_text(path, "".join(f"{json.dumps(row, default=str)}\n" for row in rows))
    elif str(path) == "-":
        typer.echo(frame.to_csv(index=False), nl=False)
    elif path.suffix == ".csv":
        atomic_write_text(path, frame.to_csv(index=False))
    else:
        raise ConfigError(f"--output {path}: .parquet, .csv, .jsonl or - is needed")


def check(
    scheme: Scheme,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="TABLE...",
            help="Probability table of new rows, labelled or not; for a scheme of several tables "
            "as many, in the order it was tuned with.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all comparisons as JSON instead.")
    ] = False,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Also keep them as metrics drift/... of this run, such as that of a served "
            "model; named as `dcs register` takes it.",
        ),
    ] = None,
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Say whether new rows have drifted from those that a scheme was fitted on.

    Compared are the shares of true and of predicted classes, the confidence, and the mean
    probability of every class. The exit code is 1 if something has drifted, and 0 if nothing has.

    Example: dcs check dcs-runs/my-dcs/scheme.json new.parquet
    """
    from dcs.evaluation.drift import compare_rows
    from dcs.evaluation.uncertainty import chance
    from tracking.store.serving import log_drift

    fitted = dcs.CorrectionScheme.load(scheme)
    references = fitted.provenance.get("reference")
    if not isinstance(references, dict) or not references:
        raise SchemeError(
            f"{scheme}: says nothing of the rows it was fitted on; tune it again with this version"
        )
    rows = _inputs_of(fitted, files)
    found: dict[str, list[Drift]] = {}
    for name, table in zip(rows.names, rows.tables, strict=True):
        reference = references.get(name if fitted.inputs else "", {})
        found[name] = compare_rows(reference, table.with_classes(fitted.classes))
    if run is not None:
        distances = {
            f"{name}/{each.subject}".lstrip("/"): each.distance
            for name, some in found.items()
            for each in some
        }
        results = Results(runs, tracking_uri)
        log_drift(results.store, results.cell(run).run_id, distances)
    drifted = [each for some in found.values() for each in some if each.drifted]
    if as_json:
        plain = {
            name: [asdict(each) | {"drifted": each.drifted} for each in some]
            for name, some in found.items()
        }
        typer.echo(json.dumps({"drifted": bool(drifted), "tables": plain}, indent=1))
    else:
        for name, some in found.items():
            shown = new_table(f"{name} ", "moved, points", "p", " ")
            for each in some:
                verdict = _largest(each, fitted.classes) if each.drifted else ""
                shown.add_row(each.subject, f"{100 * each.distance:.1f}", chance(each.p), verdict)
            console.print(shown)
        if drifted:
            subjects = ", ".join(dict.fromkeys(each.subject for each in drifted))
            console.print(
                f"drifted: {subjects}; the scheme may no longer fit, tune again with such rows",
                style="yellow",
            )
        else:
            console.print("nothing has drifted from the rows it was fitted on", style="green")
    if drifted:
        raise typer.Exit(1)


def _largest(drift: Drift, classes: Sequence[str]) -> str:
    """Say what moved most, in percent of the rows."""
    k = max(range(len(drift.now)), key=lambda k: abs(drift.now[k] - drift.before[k]))
    names = {"confidence": [f"tenth {k + 1}" for k in range(len(drift.now))]}
    name = names.get(drift.subject, classes)[k] if len(drift.now) > 1 else ""
    return f"{name} {100 * drift.before[k]:.1f} -> {100 * drift.now[k]:.1f} %".strip()
