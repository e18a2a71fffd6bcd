"""``dcs import``, ``tune``, ``apply`` and ``evaluate``: probability tables of one's own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from workflows.cli.console import console, new_table, share_bar
from workflows.cli.options import Output, Seed, Settings, TrackingUri

if TYPE_CHECKING:
    from dcs.data.table import ProbabilityTable
    from dcs.evaluation.uncertainty import Interval
    from dcs.schemes.scheme import CorrectionScheme
    from workflows.config.tuner import TunerSettings

__all__ = ["ImportCommand", "apply", "evaluate", "import_", "split_rows", "tune"]

#: Share of the rows that is held out for the final figures when no test table is given.
HELD_OUT = 0.3
#: Most classes that an exhaustive search can cope with.
MOST_CERTIFIED = 4

Table = Annotated[Path, typer.Argument(metavar="TABLE", help="Probability table; see dcs import.")]
Written = Annotated[
    Path, typer.Option("--output", "-o", metavar="TABLE", help="The Parquet file to write.")
]


class ImportCommand(TyperCommand):
    """Lists the formats in its help, those of installed packages too."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; what reads the formats is imported for it alone."""
        from dcs.data.importers import IMPORTERS, format_names

        lines = [f"* **{one.name}**: {_plain(one.summary)}" for one in IMPORTERS]
        others = format_names()[len(IMPORTERS) :]
        lines += [f"* **{_plain(name)}**: of a package that is installed" for name in others]
        self.help = "\n\n".join((self.help or "", "FORMAT is one of:", "\n".join(lines)))
        super().format_help(ctx, formatter)


def _plain(text: str) -> str:
    """Return text as Markdown that shows it as it is."""
    return re.sub(r"([<_*\[])", r"\\\1", text.replace("`", ""))


def import_(
    format: Annotated[str, typer.Argument(metavar="FORMAT", help="What the file is.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file or folder to read.")],
    output: Written,
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Divide each row by its sum instead of refusing.")
    ] = False,
    logits: Annotated[
        bool, typer.Option("--logits", help="The values are logits: apply a softmax.")
    ] = False,
    classes: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Class names, in the order of columns.")
    ] = None,
    id_column: Annotated[str | None, typer.Option(help="Column of the row names.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of the true classes.")] = None,
    class_columns: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Columns of the probabilities.")
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="Which table of a folder: optimization or test.")
    ] = None,
    filter: Annotated[
        str | None, typer.Option(help="lm-eval: which filter's responses to read.")
    ] = None,
    targets: Annotated[
        Literal["auto", "index", "text"], typer.Option(help="lm-eval: what targets are.")
    ] = "auto",
    model: Annotated[str | None, typer.Option(help="Model to note as the origin.")] = None,
    task: Annotated[str | None, typer.Option(help="Task to note as the origin.")] = None,
) -> None:
    """Turn class probabilities from elsewhere into a probability table."""
    from dcs.data.importers import import_file
    from dcs.evaluation.metrics import ClassificationMetrics

    table = import_file(
        format,
        path,
        part=part,
        normalise=normalise,
        logits=logits,
        classes=_names(classes),
        id_column=id_column,
        label_column=label_column,
        class_columns=_names(class_columns),
        filter=filter,
        targets=targets,
        model=model,
        task=task,
    )
    table.write(output)
    metrics = ClassificationMetrics.from_predictions(
        table.labels, table.probs.argmax(axis=1), table.n_classes
    )
    console.print(
        f"{output}: {table.n_rows} rows, {table.n_classes} classes "
        f"({', '.join(table.classes)}); accuracy {100 * metrics.accuracy:.1f} %, "
        f"COBias {100 * metrics.cobias:.1f}"
    )
    console.print(f"next: dcs tune {output}", style="bold")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def tune(
    table: Table,
    test: Annotated[
        Path | None,
        typer.Option(
            "--test",
            metavar="TABLE",
            help=f"Table for the final figures; by default {HELD_OUT:.0%} of TABLE is held out.",
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="dcs, dnip (weights only), furud (memberships only), or a baseline: batch, "
            "prior, temperature, vector, logistic, logistic-balanced, thresholds, published.",
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
    prefer: Annotated[
        Literal["balance", "accuracy", "knee"] | None,
        typer.Option(
            help="Point of the front: balance has the best accuracy minus COBias, accuracy the "
            "best accuracy, knee lies where the price of fairness starts to rise.",
            show_default="balance",
        ),
    ] = None,
    max_accuracy_loss: Annotated[
        float | None,
        typer.Option(
            metavar="POINTS", help="The fairest scheme at most so far below the best accuracy."
        ),
    ] = None,
    max_cobias: Annotated[
        float | None,
        typer.Option(metavar="POINTS", help="The most accurate scheme with at most this COBias."),
    ] = None,
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
    """Find the correction scheme of a probability table, judge it on held-out rows, keep it.

    Schemes are searched by simulated annealing and chosen among by cross-validation; with
    --set tuner.protocol=study by an Optuna study judged on 5 % development rows. The chosen one
    is written to OUTPUT/scheme.json, all that was tried to MLflow.
    """
    from dcs.data.table import ProbabilityTable
    from dcs.io import content_key
    from dcs.schemes.scheme import CorrectionScheme
    from dcs.selection.methods import get_method
    from tracking import Recorder
    from tracking.results.figures import cell_figures
    from workflows.cli.overview import results_table
    from workflows.config.sweep import TuneConfig, configured
    from workflows.tuning.cell import table_cells, tune_cells
    from workflows.tuning.study import certify as prove

    config = configured(
        TuneConfig,
        {},
        source="command line",
        sets=settings or (),
        tuner__trials=trials,
        tuner__prefer=prefer,
        tuner__max_accuracy_loss=max_accuracy_loss,
        tuner__max_cobias=max_cobias,
    )
    tuner = config.tuner
    whole = ProbabilityTable.read(table)
    _check(method, tuner, whole, table=table, certify=certify)
    optimization, held_out = split_rows(whole, test, seed=seed)
    cells = table_cells(
        optimization, held_out, name=table.stem, methods=("icl", method), tuner=tuner, seed=seed
    )
    with Recorder(
        tracking_uri,
        output=output,
        experiment="tune",
        sweep_key=content_key({"cells": [cell.key for cell in cells]}),
        sweep_params={"table": table.name, "method": method, "seed": seed, **tuner.model_dump()},
        run_name=table.stem,
        trials=config.tracking.trials,
        figures=config.tracking.figures,
        warn=lambda line: console.print(line, style="yellow"),
    ) as recorder:
        with share_bar(f"tuning {method}") as progress:
            records = tune_cells(
                cells, optimization, held_out, sweep="tune", output=output, progress=progress
            )
        for record in records:
            drawn = config.tracking.figures == "all"
            recorder.record(record, cell_figures(record) if drawn else None)
        with console.status("recording in MLflow"):
            report = recorder.finish()

    scheme = CorrectionScheme.from_dict(records[-1].scheme)
    path = output / "scheme.json"
    scheme.save(path)
    sentences = scheme.explain()
    if certify:
        with console.status("searching exhaustively"):
            gap = prove(optimization, get_method(method), records[-1], settings=tuner)
        z = records[-1].metrics["opt/z"]
        sentences = [*sentences, f"Z {z:.6f} on its rows: {gap:.2e} above the proven optimum"]
    console.print()
    console.print(
        f"{table.name}: % of {held_out.n_rows} held-out rows [95 % interval], p against ICL",
        style="bold",
    )
    console.print(results_table(records, width=console.width), soft_wrap=False)
    figures = records[-1].metrics
    gains = _changes(
        *(
            (figures[f"test/{x}"] - figures[f"uncorrected/test/{x}"], figures[f"test/{x}_p"])
            for x in ("accuracy", "cobias")
        )
    )
    console.print(f"against ICL, paired on the same rows: {gains}")
    console.print()
    for sentence in sentences:
        console.print(f"  {sentence}")
    console.print()
    console.print(report.message)
    console.print(f"scheme written to {path}")
    console.print(
        f"next: dcs apply {path} {test or table} -o corrected.parquet, "
        f"or dcs ui --output {output}",
        style="bold",
    )


def _check(
    method: str, tuner: TunerSettings, whole: ProbabilityTable, *, table: Path, certify: bool
) -> None:
    from dcs.errors import ConfigError
    from dcs.selection.methods import get_method

    searches = get_method(method).searches
    if method in ("icl", "contextual"):
        raise ConfigError(
            f"--method {method}: finds nothing in a table; choose dcs, dnip, furud or a baseline"
        )
    if certify and (tuner.protocol != "study" or not searches):
        raise ConfigError(
            "--certify proves the one search of a study with dcs, dnip or furud; "
            "add --set tuner.protocol=study, or leave --certify out"
        )
    if certify and whole.n_classes > MOST_CERTIFIED:
        raise ConfigError(
            f"--certify: {table} has {whole.n_classes} classes, and exhaustive search takes "
            f"minutes up to {MOST_CERTIFIED}, years beyond; leave --certify out"
        )


def _changes(*changes: tuple[float, float]) -> str:
    """Say by how much accuracy and COBias change, and how probable that is by chance."""
    from dcs.evaluation.formatting import sentence_of_chance

    return ", ".join(
        f"{title} {100 * by:+.1f} points ({sentence_of_chance(p)})"
        for title, (by, p) in zip(("accuracy", "COBias"), changes, strict=True)
    )


def split_rows(
    table: ProbabilityTable, test: Path | None, *, seed: int
) -> tuple[ProbabilityTable, ProbabilityTable]:
    """Return the rows to tune on and those for the final figures: of `test`, or held out."""
    from dcs.data.splits import stratified_split
    from dcs.data.table import ProbabilityTable
    from dcs.errors import TableError
    from dcs.seeds import derive_seed

    if test is None:
        parts = stratified_split(
            table.labels,
            {"optimization": 1.0 - HELD_OUT, "test": HELD_OUT},
            seed=derive_seed(seed, "held-out"),
        )
        return (
            table.subset(parts["optimization"], split="optimization"),
            table.subset(parts["test"], split="test"),
        )
    held_out = ProbabilityTable.read(test)
    if held_out.classes != table.classes:
        raise TableError(
            f"{test}: classes are {', '.join(held_out.classes)}; those of the table to tune are "
            f"{', '.join(table.classes)}, and both must be the same in the same order"
        )
    return table, held_out


def _scheme_for(table: ProbabilityTable, path: Path) -> CorrectionScheme:
    from dcs.schemes.scheme import CorrectionScheme

    return CorrectionScheme.load(path).for_classes(table.classes, source=str(path))


def apply(
    scheme: Annotated[Path, typer.Argument(metavar="SCHEME", help="scheme.json of dcs tune.")],
    table: Table,
    output: Written,
) -> None:
    """Write the corrected probabilities of a table, as a table of the same form."""
    from dcs.data.table import ProbabilityTable

    probabilities = ProbabilityTable.read(table)
    correction = _scheme_for(probabilities, scheme)
    before = probabilities.probs.argmax(axis=1)
    changed = int((correction.predict(probabilities.probs) != before).sum())
    probabilities.with_probs(correction.apply(probabilities.probs)).write(output)
    console.print(f"{output}: {probabilities.n_rows} rows, {changed} predictions changed")
    console.print(f"next: dcs evaluate {output}", style="bold")


def evaluate(
    table: Table,
    scheme: Annotated[
        Path | None,
        typer.Option("--scheme", "-s", metavar="SCHEME", help="Correct with this scheme first."),
    ] = None,
) -> None:
    """Print accuracy, COBias and class accuracies of a table, before and after correction."""
    from dcs.data.table import ProbabilityTable
    from dcs.evaluation.metrics import confusion_matrix
    from dcs.evaluation.uncertainty import bootstrap_intervals, compare_predictions
    from dcs.schemes.scheme import CorrectionScheme

    probabilities = ProbabilityTable.read(table)
    schemes = {"uncorrected": CorrectionScheme.identity(probabilities.classes)}
    if scheme is not None:
        schemes["corrected"] = _scheme_for(probabilities, scheme)
    labels, n_classes = probabilities.labels, probabilities.n_classes
    predictions = [correction.predict(probabilities.probs) for correction in schemes.values()]
    intervals = [
        bootstrap_intervals(confusion_matrix(labels, some, n_classes)) for some in predictions
    ]
    console.print(f"{table.name}: % of {probabilities.n_rows} rows [95 % interval]", style="bold")
    shown = new_table(" ", *schemes)
    shown.add_row("accuracy ↑", *_figures(each.accuracy for each in intervals), style="bold")
    shown.add_row("COBias ↓", *_figures(each.cobias for each in intervals), style="bold")
    shown.add_section()
    for index, name in enumerate(probabilities.classes):
        shown.add_row(name, *_figures(each.class_accuracies[index] for each in intervals))
    console.print(shown, soft_wrap=False)
    if scheme is not None:
        change = compare_predictions(labels, predictions[0], predictions[1], n_classes)
        accuracy = change.accuracy.estimate, change.accuracy_p
        cobias = change.cobias.estimate, change.cobias_p
        console.print(f"change: {_changes(accuracy, cobias)}")


def _figures(intervals: Iterable[Interval]) -> list[str]:
    from dcs.evaluation.formatting import percent

    # A class without rows has no accuracy.
    return [
        percent(each.estimate, interval=(each.low, each.high), padded=True) or "-"
        for each in intervals
    ]
