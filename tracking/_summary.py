"""What the run of a sweep shows of its cells: tables and figures, as files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tracking import schema
from tracking import tables as _tables
from tracking.class_tables import scheme_summary
from tracking.paper_tables import main_results
from tracking.records import CellRecord

MAIN_RESULTS: Final = f"{schema.TABLES_FOLDER}/main_results.json"
SCHEMES: Final = f"{schema.TABLES_FOLDER}/schemes.json"

TABLES: Final = (
    schema.LEADERBOARD_FILE,
    schema.CLASS_ACCURACIES_FILE,
    MAIN_RESULTS,
    SCHEMES,
)
"""The files that MLflow lists as tables."""

_DRAWN: Final = ("class_accuracies", "accuracy_cobias")


def tables(records: Iterable[CellRecord]) -> dict[str, str]:
    """Return the tables of a sweep by file name."""
    cells = list(records)
    files = {
        schema.LEADERBOARD_FILE: _tables.to_mlflow_json(_tables.leaderboard(cells)),
        schema.CLASS_ACCURACIES_FILE: _tables.to_mlflow_json(_tables.class_accuracy_table(cells)),
        schema.LEADERBOARD_TEXT: _tables.leaderboard_markdown(cells),
    }
    for table in (main_results(cells), scheme_summary(cells)):
        for name, text in table.contents().items():
            files[f"{schema.TABLES_FOLDER}/{name}"] = text
    return files


def figures(records: Iterable[CellRecord]) -> dict[str, bytes]:
    """Return the figures of a sweep by file name."""
    # Half a second of imports that only the end of a sweep needs.
    from tracking.figures import figure_bytes, overview_figures

    files: dict[str, bytes] = {}
    for name, (_, figure) in overview_figures(records, only=_DRAWN).items():
        files[f"{schema.FIGURES_FOLDER}/{name}.png"] = figure_bytes(figure, "png")
        files[f"{schema.FIGURES_FOLDER}/{name}.svg"] = figure_bytes(figure, "svg")
    return files
