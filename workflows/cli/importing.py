"""``dcs import``: other people's files into probability tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

__all__ = ["ImportCommand", "import_"]


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


def import_(
    format: Annotated[str, typer.Argument(metavar="FORMAT", help="What the file is.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file or folder to read.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="TABLE", help="The Parquet file to write.")
    ],
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
    from workflows.cli._console import console

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
        f"COBias {100 * metrics.cobias:.1f}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    console.print(f"next: [bold]dcs tune {output}[/bold]", soft_wrap=True)


def _plain(text: str) -> str:
    """Return text as Markdown that shows it as it is."""
    return re.sub(r"([<_*\[])", r"\\\1", text.replace("`", ""))


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]
