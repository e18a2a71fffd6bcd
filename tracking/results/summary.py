"""What the run of a sweep shows of its cells: tables, as files."""

from __future__ import annotations

from collections.abc import Iterable

from tracking import schema
from tracking.records import CellRecord
from tracking.results import tables as _tables
from tracking.results.class_tables import class_accuracies_by_seed, scheme_summary
from tracking.results.paper_tables import ablation_tables, main_results
from tracking.results.tables import ResultTable
from tracking.results.timing import timing_table

__all__ = ["all_tables", "table_files"]


def all_tables(records: Iterable[CellRecord], *, paper_too: bool = True) -> list[ResultTable]:
    """Return every table of the paper that a sweep has cells for, in the paper's order."""
    cells = list(records)
    tables = [
        main_results(cells, paper_too=paper_too),
        scheme_summary(cells, paper_too=paper_too),
        timing_table(cells, paper_too=paper_too),
        *class_accuracies_by_seed(cells, paper_too=paper_too),
        *ablation_tables(cells, paper_too=paper_too),
    ]
    return [table for table in tables if table.rows]


def table_files(records: Iterable[CellRecord]) -> dict[str, str]:
    """Return the tables of a sweep by file name."""
    cells = list(records)
    files = {
        schema.LEADERBOARD_FILE: _tables.to_mlflow_json(_tables.leaderboard(cells)),
        schema.CLASS_ACCURACIES_FILE: _tables.to_mlflow_json(_tables.class_accuracy_table(cells)),
        schema.LEADERBOARD_TEXT: _tables.leaderboard_markdown(cells),
    }
    for table in all_tables(cells):
        for name, text in table.contents().items():
            files[f"{schema.TABLES_FOLDER}/{name}"] = text
    return files
