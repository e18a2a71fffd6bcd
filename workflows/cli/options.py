"""Options that several commands share, worded once, and the results that they name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcs.errors import DCSError, TrackingError
from workflows.cli.console import console

if TYPE_CHECKING:
    from tracking import CellRecord, Recorder
    from tracking.records import StoredCell
    from workflows.config.tuner import TrackingSettings

Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="MODEL", help="Folder, hub id or served name; repeatable."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the YAML: tuner.trials=10"),
]
Engine = Annotated[
    str | None, typer.Option(metavar="NAME", help="What scores prompts: vllm, openai, ...")
]
Limit = Annotated[
    int | None, typer.Option(metavar="ROWS", min=1, help="Most texts of each split.")
]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where everything is written.")
]
#: Where commands look that only read.
Runs = Annotated[
    Path,
    typer.Option("--runs", "--output", "-o", metavar="FOLDER", help="The --output of the runs."),
]
TrackingUri = Annotated[
    str | None, typer.Option(metavar="URI", help="MLflow; by default FOLDER/mlflow.db.")
]
Data = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Texts of tasks: FOLDER/TASK/...")
]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A cell key or run id, or how it begins; the name of a run; or the best one, e.g. "
        "best:test/cobias<5. `dcs runs` lists them.",
    ),
]


def recording(
    tracking_uri: str | None, *, output: Path, tracking: TrackingSettings, **sweep: Any
) -> Recorder:
    """Return what records a sweep as the configuration says, and warns on the terminal."""
    from tracking import Recorder

    return Recorder(
        tracking_uri,
        output=output,
        trials=tracking.trials,
        figures=tracking.figures,
        warn=lambda line: console.print(line, style="yellow"),
        **sweep,
    )


def place(output: Path, tracking_uri: str | None) -> str:
    """Return the options by which a command finds what was recorded."""
    from tracking.store.client import redact

    store = "" if tracking_uri is None else f" --tracking-uri {quote(redact(tracking_uri))}"
    return f"--output {quote(str(output))}{store}"


def ui_command(output: Path, tracking_uri: str | None) -> str:
    """Return the command that opens MLflow, or where its server is."""
    from tracking.store.client import has_server

    if tracking_uri is not None and has_server(tracking_uri):
        return "MLflow's server"
    return f"dcs ui {place(output, tracking_uri)}"


@dataclass(frozen=True, slots=True)
class Results:
    """Finished work: a folder of records, and the store that they are recorded in."""

    folder: Path
    tracking_uri: str | None

    @property
    def store(self) -> str:
        """The address of the store, which is only read.

        Raises
        ------
        dcs.errors.TrackingError
            It is an SQLite file that does not exist: MLflow would make one and find nothing.
        """
        from tracking import resolve_tracking_uri

        uri = resolve_tracking_uri(self.tracking_uri, self.folder)
        _, is_sqlite, name = uri.partition("sqlite:///")
        file = Path(name.partition("?")[0]) if self.tracking_uri else self.folder / "mlflow.db"
        if is_sqlite and not file.is_file():
            raise TrackingError(
                f"{file}: no such file; nothing is recorded there yet: run dcs quickstart, dcs "
                "tune or dcs sweep first, or say where the results are with --runs or "
                "--tracking-uri"
            )
        return uri

    def cells(self, experiment: str) -> list[StoredCell]:
        """Return the cells of an experiment, in the order of tables."""
        from tracking import Archive
        from tracking.store.queries import stored_cells

        with console.status("reading the runs"):
            return stored_cells(self.store, experiment, archive=Archive(self.folder))

    def cell(self, name: str) -> StoredCell:
        """Return the cell of a `RunName` and its run in the store."""
        from tracking import Archive
        from tracking.store.queries import find_cell

        with console.status("reading the runs"):
            return find_cell(self.store, name, archive=Archive(self.folder))

    def record(self, name: str) -> CellRecord:
        """Return the cell of a `RunName`, from the disk alone where its key is of a file there."""
        from tracking import Archive

        archive = Archive(self.folder)
        paths = archive.cells.glob("[!.]*.json")
        if len(keys := [path.stem for path in paths if path.stem.startswith(name)]) == 1:
            return archive.read(keys[0])
        return self.cell(name).record

    def link(self, key: str) -> str:
        """Return a cell's key and link for people, without the link while it is in no store."""
        from tracking.store.client import run_link

        try:
            return f"cell {key[:8]}: {run_link(self.store, self.cell(key))}"
        except DCSError:
            return f"cell {key[:8]}"
