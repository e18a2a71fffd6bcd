"""``dcs import``, ``tune``, ``pick``, ``apply``, ``evaluate``: probability tables of one's own."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dcs
from dcs.errors import ConfigError, TableError
from dcs.io import atomic_write_bytes, atomic_write_text, read_text
from dcs.messages import listing, reason
from workflows.cli.console import console, share_bar
from workflows.cli.options import Output, Seed, Settings, TrackingUri, recording
from workflows.cli.runs import link_to

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from dcs import CorrectionScheme, FittedScheme, ProbabilityTable
    from dcs.selection.ensemble import TableEnsemble
    from workflows.config.sweep import TunerSettings

__all__ = ["apply", "evaluate", "import_", "pick", "tune"]

#: Share of the rows that is held out for the final figures when no test table is given.
HELD_OUT = 0.3
#: The file that holds the front which a scheme is picked from, beside that of the scheme.
FRONT = "front.json"
#: The file of the same setting fitted on all labelled rows.
REFITTED = "refitted.json"
#: Labelled rows of a learning curve.
_CURVE_SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)
#: Most classes that an exhaustive search can cope with.
MOST_CERTIFIED = 4

Table = Annotated[Path, typer.Argument(metavar="TABLE", help="Probability table; see dcs import.")]
Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="TABLE...",
        help="Probability table (see dcs import), .npz archive, or folder of dcs generate. "
        "Several of the same rows, matched by id, get one scheme.",
    ),
]
Normalise = Annotated[
    bool, typer.Option("--normalise", help="Divide each row by its sum instead of refusing.")
]
Prefer = Annotated[
    Literal[
        "no-harm",
        "balance",
        "knee",
        "accuracy",
        "balanced-accuracy",
        "macro-f1",
        "weakest-class",
    ]
    | None,
    typer.Option(
        help="Point of the front: no-harm is the fairest that costs no accuracy beyond noise, "
        "balance has the best accuracy minus COBias, knee lies where the price of fairness "
        "starts to rise, the others have the best figure of that name.",
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
    """Return names between commas; one that holds a comma stands in double quotes."""
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]


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
    if part is not None or len(found) == 1 or output.suffix == ".parquet":
        tables = {output: the_table(found, part, path)}
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
    console.print(f"next: dcs tune {output if pair else next(iter(tables))}", style="bold")


def tune(
    tables: Sources,
    test: Annotated[
        list[Path] | None,
        typer.Option(
            "--test",
            metavar="TABLE",
            help=f"Table for the final figures; by default {HELD_OUT:.0%} of TABLE is held out.",
        ),
    ] = None,
    unlabelled: Annotated[
        list[Path] | None,
        typer.Option(
            "--unlabelled",
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
    certify: Annotated[
        bool,
        typer.Option(
            "--certify",
            help="With tuner.protocol=study: prove by exhaustive search how near the optimum is, "
            f"up to {MOST_CERTIFIED} classes.",
        ),
    ] = False,
    settings: Settings = None,
    seed: Seed = 0,
    output: Output = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
) -> None:
    """Find the correction scheme of probability tables, judge it on held-out rows, keep it.

    Schemes are searched by simulated annealing and chosen among by cross-validation; with
    --set tuner.protocol=study by an Optuna study judged on 5 % development rows. The chosen one
    is written to OUTPUT/TABLE-METHOD/scheme.json, all that was tried to MLflow. Of several tables
    of the same rows, cross-validation decides whether one alone, their mean or a stack is taken.

    Example: `dcs tune rows.parquet --prefer knee --output runs`
    """
    from dcs.data.table import ProbabilityTable
    from dcs.io import content_key
    from dcs.selection.ensemble import TableEnsemble, inputs_of
    from workflows.cli.judgement import (
        UNCORRECTED,
        cost_of,
        show_front,
        show_learning_curve,
    )
    from workflows.cluster.sweep import run_here
    from workflows.config.sweep import SweepConfig, TuneConfig, configured
    from workflows.plan import plan_sweep
    from workflows.tables import join_unlabelled
    from workflows.tuning.cell import refitted
    from workflows.tuning.study import certify as prove

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
    tuner = config.tuner
    members = named_paths(tables)
    name = "+".join(members)
    choices = dict(zip(members, _with_tests(tables, test or []), strict=True))
    if unlabelled:
        _fitting("--unlabelled", unlabelled, tables)
        for (own, choice), more in zip(choices.items(), unlabelled, strict=True):
            joined = output / "joined" / f"{Path(own).stem}.parquet"
            choices[own] = join_unlabelled(choice, more, joined)
    methods = tuple(dict.fromkeys((method, *(compare or ()))))
    for each in methods:
        _check(each, tuner, certify=certify and each == method)
    sweep = SweepConfig(
        name="tune",
        tables=(choices if len(choices) > 1 else choices[name],),
        held_out=HELD_OUT,
        methods=("icl", *methods),
        seeds=(seed,),
        tuner=tuner,
        tracking=config.tracking,
    )
    plan = plan_sweep(sweep, output, retry_failed=True)
    ((key, cells),) = plan.cells.items()
    rows, held_out = plan.read(key).values()
    if learning_curve:
        sweep = sweep.model_copy(update=_curve(int(rows.labelled.sum())))
        plan = plan_sweep(sweep, output, retry_failed=True)
        cells = plan.cells[key]
    if certify:
        _check_certifiable(rows, name)
    if refit and (tuner.protocol == "study" or isinstance(rows, TableEnsemble)):
        raise ConfigError(
            "--refit fits again what cross-validation chose of one table; leave it out, or "
            "tuner.protocol=study, or give one table"
        )
    with recording(
        tracking_uri,
        output=output,
        tracking=config.tracking,
        experiment="tune",
        sweep_key=content_key({"cells": [cell.key for cell in cells]}),
        sweep_params={"table": name, "method": method, "seed": seed, **tuner.model_dump()},
        run_name=name,
    ) as recorder:
        with share_bar(f"tuning {method}") as progress:
            records = run_here(plan, recorder, progress)
        with console.status("recording in MLflow"):
            report = recorder.finish()

    found = {
        record.identity["method"]: record
        for record in records
        if record.identity["optimization_size"] is None
    }
    schemes = {
        UNCORRECTED if name == "icl" else name: dcs.CorrectionScheme.from_dict(record.scheme)
        for name, record in found.items()
    }
    scheme = schemes[method]
    record = found[method]
    front = None if record.front is None else dcs.FittedScheme.from_dict(record.front)
    path = output / f"{name}-{method}" / "scheme.json"
    replaced = _keep(scheme, front, path)
    sentences = scheme.explain(inputs_of(scheme, held_out))
    if certify and isinstance(rows, ProbabilityTable):
        with console.status("searching exhaustively"):
            gap = prove(rows, dcs.get_method(method), record, settings=tuner)
        reached = record.metrics["opt/z"]
        sentences.append(f"Z {reached:.6f} on its rows: {gap:.2e} above the proven optimum")
    console.print()
    _show_judgement(name, rows, held_out, schemes)
    if learning_curve:
        show_learning_curve(records, method, path.with_name("learning_curve.svg"))
    if front is not None:
        show_front(front)
    elif held_out.labelled.any() and (price := cost_of(record)):
        console.print(price, style="yellow")
    console.print()
    for sentence in sentences:
        console.print(f"  {sentence}")
    console.print()
    console.print(report.message)
    console.print(link_to(record.key, output, tracking_uri))
    console.print(f"scheme written to {path}{', in place of another' if replaced else ''}")
    if refit and isinstance(rows, ProbabilityTable) and isinstance(held_out, ProbabilityTable):
        path = path.with_name(REFITTED)
        with console.status("fitting on all rows"):
            refitted(record, [rows, held_out]).save(path)
        console.print(f"the same setting fitted on all labelled rows written to {path}")
    used = (
        [(test or tables)[list(members).index(each)] for each in scheme.inputs] or test or tables
    )
    rest = "ROWS" if used[0].is_dir() else " ".join(map(str, used))
    console.print(
        f"next: dcs apply {path} {rest} -o corrected.parquet, or dcs ui --output {output}",
        style="bold",
    )


def _check_certifiable(rows: ProbabilityTable | TableEnsemble, name: str) -> None:
    """Refuse what exhaustive search cannot prove, or not in a lifetime."""
    if rows.n_classes > MOST_CERTIFIED:
        raise ConfigError(
            f"--certify: {name} has {rows.n_classes} classes, and exhaustive search takes "
            f"minutes up to {MOST_CERTIFIED}, years beyond; leave --certify out"
        )
    from dcs.selection.ensemble import TableEnsemble

    if isinstance(rows, TableEnsemble):
        raise ConfigError("--certify is of one table; leave it out, or give one table")


def _keep(scheme: CorrectionScheme, front: FittedScheme | None, path: Path) -> bool:
    """Write the scheme and the front it is from; tells whether another scheme was there."""
    replaced = path.exists() and dcs.CorrectionScheme.load(path) != scheme
    scheme.save(path)
    if front is not None:
        front.save(path.with_name(FRONT))
    else:
        path.with_name(FRONT).unlink(missing_ok=True)
    return replaced


def _show_judgement(
    name: str,
    rows: ProbabilityTable | TableEnsemble,
    held_out: ProbabilityTable | TableEnsemble,
    schemes: Mapping[str, CorrectionScheme],
) -> None:
    """Print how schemes do on the held-out rows, or why that cannot be told."""
    from workflows.cli.judgement import judged_tables

    if gaps := int((~rows.labelled).sum()):
        console.print(f"{name}: of {rows.n_rows} rows to fit on {rows.n_rows - gaps} have labels")
    if not held_out.labelled.any():
        console.print(
            "No row has a label: this is batch calibration, which makes the mean probabilities of "
            "all classes alike. What it does to accuracy and COBias nobody can tell without "
            "labels; label some hundred rows and tune again.",
            style="yellow",
        )
        return
    judged = held_out.only_labelled()
    console.print(f"{name}: % of {judged.n_rows} held-out rows [95 % interval]", style="bold")
    for shown in judged_tables(judged, schemes, width=console.width):
        console.print(shown, soft_wrap=False)


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
    from workflows.cli.judgement import show_front

    path = scheme / "scheme.json" if scheme.is_dir() else scheme
    before = dcs.FittedScheme.load(path.with_name(FRONT))
    picked = before.pick(
        dcs.Preference(prefer or "no-harm", exchange_rate, max_accuracy_loss, max_cobias)
    )
    old, new = dcs.CorrectionScheme.load(path), picked.scheme
    # What rows and tables it is of stays.
    provenance = {**old.provenance, **new.provenance}
    new = replace(
        old, corrections=new.corrections, calibration=new.calibration, provenance=provenance
    )
    new.save(path)
    picked.save(path.with_name(FRONT))
    show_front(picked)
    console.print()
    for sentence in new.explain():
        console.print(f"  {sentence}")
    console.print()
    if picked.chosen == before.chosen:
        console.print(f"{path}: the same point as before")
    else:
        changes = (
            f"{title} {100 * getattr(before.chosen, name):.1f} -> "
            f"{100 * getattr(picked.chosen, name):.1f}"
            for name, title in (("accuracy", "accuracy"), ("lasting_cobias", "COBias"))
        )
        console.print(f"{path} is another point now: {', '.join(changes)}")


def named_paths(paths: Sequence[Path]) -> dict[str, Path]:
    """Return paths by what they are called: the name of the file, all of it where two are alike.

    Raises
    ------
    ConfigError
        A path is given twice.
    """
    names = [path.name if path.is_dir() else path.stem for path in paths]
    if len({*names}) < len(names):
        names = [str(path) for path in paths]
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigError(f"{path}: given twice; each table once")
    return dict(zip(names, paths, strict=True))


def _curve(labelled: int) -> dict[str, Any]:
    """Return what a sweep over numbers of labelled rows has besides."""
    sizes = [size for size in _CURVE_SIZES if size < labelled]
    if not sizes:
        raise ConfigError(
            f"--learning-curve: {labelled} labelled rows to fit on; more than {_CURVE_SIZES[0]} "
            "are needed"
        )
    return {"optimization_sizes": (*sizes, "full"), "axes": {"keep_unlabelled": (False, True)}}


def _fitting(option: str, given: Sequence[Path], tables: Sequence[Path]) -> None:
    """Refuse an option that is not there for each of the tables."""
    if len(given) != len(tables):
        raise ConfigError(
            f"{option}: {len(given)} given for {len(tables)} tables; give one for each, in the "
            "same order, or none"
        )


def _with_tests(tables: Sequence[Path], tests: Sequence[Path]) -> list[str | tuple[str, str]]:
    """Return tables as a configuration has them, each with its test table if there are any."""
    if not tests:
        return [str(table) for table in tables]
    _fitting("--test", tests, tables)
    return [(str(table), str(test)) for table, test in zip(tables, tests, strict=True)]


def _check(method: str, tuner: TunerSettings, *, certify: bool) -> None:
    """Refuse before any work what cannot be done."""
    searches = dcs.get_method(method).searches
    if method in ("icl", "contextual"):
        raise ConfigError(
            f"--method {method}: finds nothing in a table; choose dcs, dnip, furud or a baseline"
        )
    if certify and (tuner.protocol != "study" or not searches):
        raise ConfigError(
            "--certify proves the one search of a study with dcs, dnip or furud; "
            "add --set tuner.protocol=study, or leave --certify out"
        )


def apply(
    scheme: Annotated[Path, typer.Argument(metavar="SCHEME", help="scheme.json of dcs tune.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="ROWS...",
            help="Probability table, or Parquet, .csv or .jsonl with a column per class, named as "
            "the class or p:CLASS; - reads CSV from the standard input. A scheme of several "
            "tables takes as many probability tables, in the order it was tuned with.",
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
    correction, rows = dcs.CorrectionScheme.load(scheme), files[0]
    table = None
    if len(correction.inputs) > 1 or len(files) > 1:
        ensemble = inputs_from(correction, files)
        correction = correction.for_classes(ensemble.classes, source=str(scheme))
        table = ensemble.combined(correction)
        # What is left to do is to correct one table.
        correction = replace(correction, combination=None, inputs=())
    elif output.suffix == ".parquet" == rows.suffix and _is_table(rows):
        table = dcs.ProbabilityTable.read(rows)
    if table is not None:
        correction = correction.for_classes(table.classes, source=str(scheme))
        probs = table.probs
    if table is not None and output.suffix == ".parquet":
        table.with_probs(correction.apply(probs)).write(output)
    else:
        frame = _read_rows(rows) if table is None else _frame(table)
        columns = _class_columns(frame, correction.classes, rows)
        if table is None:
            probs = _probabilities(frame[columns], correction.classes, rows, normalise=normalise)
        frame[columns] = correction.apply(probs)
        frame["predicted"] = [correction.classes[k] for k in correction.predict(probs)]
        _write_rows(frame, output)
    if str(output) != "-":
        changed = int((correction.predict(probs) != probs.argmax(axis=1)).sum())
        console.print(f"{output}: {len(probs)} rows, {changed} predictions changed")
    if table is not None and output.suffix == ".parquet":
        console.print(f"next: dcs evaluate {output}", style="bold")


def inputs_from(scheme: CorrectionScheme, files: Sequence[Path]) -> TableEnsemble:
    """Return the tables that a scheme takes, checked to be those it is for."""
    from dcs.data.importers import read_tables, the_table
    from dcs.selection.ensemble import TableEnsemble

    tables = [(str(file), the_table(read_tables(file), None, file)) for file in files]
    return TableEnsemble.of(scheme, tables)


def _frame(table: ProbabilityTable) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(table.probs, columns=[f"p:{name}" for name in table.classes])
    frame.insert(0, "id", table.ids)
    return frame


def _is_table(path: Path) -> bool:
    """Whether a Parquet file has labels, as probability tables have."""
    from dcs.data.table import open_parquet

    with open_parquet(path) as file:
        return "label" in file.schema_arrow.names


def _read_rows(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.suffix == ".jsonl":
            return pd.read_json(path, lines=True, dtype=False)
        text = sys.stdin.read() if str(path) == "-" else read_text(path, error=TableError)
        separator = max(",;\t", key=text.partition("\n")[0].count)
        # Whatever is no probability stays the text that it is.
        return pd.read_csv(io.StringIO(text), sep=separator, dtype=str, keep_default_na=False)
    except ValueError as error:
        raise TableError(f"{path}: cannot be read as rows: {reason(error)}") from None


def _class_columns(frame: pd.DataFrame, classes: Iterable[str], path: Path) -> list[str]:
    # One form for all: a class may be called p:odd.
    forms = [[f"p:{name}" for name in classes], list(classes)]
    lacking = [[column for column in form if column not in frame] for form in forms]
    best = min((0, 1), key=lambda form: len(lacking[form]))
    if lacking[best]:
        raise TableError(
            f"{path}: no column {lacking[best][0]!r}; the scheme needs one for each class, all "
            "named as the class or all p:<class>; its columns are "
            f"{listing(list(map(str, frame.columns)))}"
        )
    return forms[best]


def _probabilities(
    frame: pd.DataFrame, classes: tuple[str, ...], path: Path, *, normalise: bool
) -> NDArray[np.float64]:
    import pandas as pd

    from dcs.data.checks import Named, checked_shape, normalised_rows

    numbers = frame.apply(pd.to_numeric, errors="coerce").to_numpy(dtype=float)
    values = checked_shape(numbers, source=str(path))
    return normalised_rows(values, Named(str(path), classes), normalise=normalise)


def _write_rows(frame: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".parquet":
        atomic_write_bytes(path, frame.to_parquet())
    elif path.suffix == ".jsonl":
        atomic_write_text(path, frame.to_json(orient="records", lines=True, double_precision=15))
    elif str(path) == "-":
        typer.echo(frame.to_csv(index=False), nl=False)
    else:
        atomic_write_text(path, frame.to_csv(index=False))


def evaluate(
    table: Table,
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
    from workflows.cli.judgement import UNCORRECTED, judged_tables, warn_of_fitted_rows

    rows = dcs.ProbabilityTable.read(table).only_labelled(source=str(table))
    schemes = {UNCORRECTED: dcs.CorrectionScheme.identity(rows.classes)}
    for path in scheme or ():
        # Schemes of dcs tune are told apart by their folders.
        name = path.resolve().parent.name if path.stem == "scheme" else path.stem
        found = dcs.CorrectionScheme.load(path).for_classes(rows.classes, source=str(path))
        schemes[str(path) if name in schemes else name] = found
    console.print(f"{table.name}: % of {rows.n_rows} rows [95 % interval]", style="bold")
    for shown in judged_tables(rows, schemes, width=console.width):
        console.print(shown, soft_wrap=False)
    warn_of_fitted_rows(rows, schemes)
