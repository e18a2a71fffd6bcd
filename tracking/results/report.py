"""The report of a sweep: one HTML file that needs no network."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from dcs.data.table import ProbabilityTable
from dcs.errors import InvalidInputError
from dcs.evaluation.formatting import chance, percent
from dcs.messages import last_line
from tracking.records import CellRecord, StoredCell
from tracking.results.class_tables import class_accuracies_by_seed, scheme_summary
from tracking.results.figures import figure_bytes, overview_figures, scheme_figure, trace_figure
from tracking.results.figures.overview import ABLATION
from tracking.results.frames import (
    Axis,
    Estimate,
    annealing_seconds,
    axes_of,
    finished_cells,
    main_cells,
    method_title,
    place,
    setting,
    shots_text,
)
from tracking.results.paper_tables import ablation_tables, main_results
from tracking.results.report_parts import SchemeText, changes, chosen_schemes, packages, period
from tracking.results.tables import ResultTable
from tracking.results.timing import timing_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["render_report"]

#: A picture of more characters than this is smaller, and no worse, as a bitmap.
_LARGEST_SVG = 250_000
#: A figure, its deviation or interval, and a star.
_MEASURED = re.compile(r"(\S+) (± \S+|\[[^\]]+\])(\*?)")
_MOST_SCHEMES = 12
#: Figures by the part of the report that they stand in.
_RESULT_FIGURES = ("class_accuracies", "accuracy_cobias", "class_groups")
_SEARCH_FIGURES = ("annealing_time", "importances", "slices")


def render_report(
    cells: Sequence[StoredCell],
    *,
    title: str,
    link: Callable[[StoredCell], str],
    store: str,
    tables: Callable[[str], ProbabilityTable | None] | None = None,
) -> str:
    """Return the report of a sweep as HTML.

    Parameters
    ----------
    cells : sequence of StoredCell
        The sweep's cells, from `tracking.stored.stored_cells`.
    title : str
        Name of the sweep.
    link : callable
        Gives the address of a cell's run in MLflow.
    store : str
        What to call the store; without a password.
    tables : callable, optional
        Gives the probability table of a digest, or None; for records without histograms, to draw
        their correction functions over.

    Returns
    -------
    str
        A page without references to other files.

    Raises
    ------
    InvalidInputError
        No cell is finished.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    records = finished_cells(cell.record for cell in cells)
    if not records:
        why = "{} failed with: {}; add --retry-failed to the sweep to compute all again"
        failed = f"; {why.format(*_failure(cells[0], ''))}" if cells else ""
        raise InvalidInputError(
            f"{title}: no cell is finished, so there is nothing to report{failed}"
        )
    figures = overview_figures(records)
    axes = axes_of(records)
    environment = Environment(
        loader=PackageLoader("tracking"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["measured"] = _measured
    schemes = _schemes(_main_only(cells, axes), link, tables)
    static = files("tracking").joinpath("templates")
    page: str = environment.get_template("report.html.jinja").render(
        title=title,
        store=store,
        style=static.joinpath("report.css").read_text(encoding="utf-8"),
        script=static.joinpath("report.js").read_text(encoding="utf-8"),
        facts=_facts(records, axes),
        changes=changes(main_cells(records, axes=axes)),
        over_seeds=len({record.identity.get("seed") for record in records}) > 1,
        main=main_results(records),
        result_figures=_drawn(figures, _RESULT_FIGURES),
        ablations=ablation_tables(records),
        ablation_figures=_drawn(figures, [name for name in figures if name.startswith(ABLATION)]),
        scheme_summary=scheme_summary(records),
        schemes=schemes,
        # A page of a hundred schemes would hide what comes after them.
        folded=len(schemes) > _MOST_SCHEMES,
        timing=timing_table(records),
        search_figures=[*_drawn(figures, _SEARCH_FIGURES), *_trace(records)],
        class_tables=class_accuracies_by_seed(records),
        with_settings=bool(axes),
        rows=[_row(cell, link(cell), axes) for cell in cells],
        failures=[_failure(cell, link(cell)) for cell in cells if not cell.record.finished],
        packages=packages(records),
        is_number=_is_number,
    )
    return page


def _main_only(cells: Sequence[StoredCell], axes: Sequence[Axis]) -> list[StoredCell]:
    kept = {id(record) for record in main_cells((c.record for c in cells), axes=axes)}
    return [cell for cell in cells if id(cell.record) in kept]


def _facts(records: Sequence[CellRecord], axes: Sequence[Axis]) -> list[tuple[str, str]]:
    def different(name: str) -> list[str]:
        return list(dict.fromkeys(str(cell.identity.get(name)) for cell in records))

    facts = [
        ("cells", str(len(records))),
        ("models", ", ".join(different("model"))),
        ("tasks", ", ".join(different("task"))),
        ("methods", ", ".join(method_title(name) for name in different("method"))),
        ("seeds", ", ".join(sorted(different("seed"), key=lambda seed: (len(seed), seed)))),
        ("computed", period(records)),
    ]
    shots = [name for name in different("shots") if name != "None"]
    if shots:
        facts.insert(3, ("shots", ", ".join(shots)))
    facts[-1:-1] = [
        (axis.title, ", ".join(axis.short(value) for value in axis.in_order)) for axis in axes
    ]
    return facts


def _drawn(
    figures: dict[str, tuple[str, Figure]], names: Sequence[str]
) -> list[tuple[str, str, int]]:
    return [
        (caption, *_picture(figure))
        for caption, figure in (figures[name] for name in names if name in figures)
    ]


def _picture(figure: Figure) -> tuple[str, int]:
    """Return a figure as a data URI, and its width in pixels."""
    data, kind = figure_bytes(figure, "svg"), "svg+xml"
    if len(data) > _LARGEST_SVG:
        data, kind = figure_bytes(figure, "png"), "png"
    text = base64.b64encode(data).decode("ascii")
    return f"data:image/{kind};base64,{text}", round(96 * figure.get_size_inches()[0])


def _schemes(
    cells: Sequence[StoredCell],
    link: Callable[[StoredCell], str],
    tables: Callable[[str], ProbabilityTable | None] | None,
) -> list[tuple[SchemeText, str, tuple[str, int] | None]]:
    shown = []
    for cell, text, drawn in chosen_schemes(cells):
        picture = None
        if drawn:
            digest = cell.record.identity.get("optimization_digest")
            wanted = tables is not None and digest is not None and not cell.record.histograms
            table = tables(str(digest)) if tables is not None and wanted else None
            picture = _picture(scheme_figure(cell.record, table=table))
        shown.append((text, link(cell), picture))
    return shown


def _trace(records: Sequence[CellRecord]) -> list[tuple[str, str, int]]:
    records = main_cells(records)
    traced = [cell for cell in records if cell.trace and cell.identity.get("method") == "dcs"]
    traced = traced or [cell for cell in records if cell.trace]
    if not traced:
        return []
    caption = (
        "One annealing run, the one whose scheme was chosen for the first cell: the objective, "
        "the temperature and the share of moves accepted. Light lines are restarts"
    )
    return [(caption, *_picture(trace_figure(traced[0])))]


def _row(cell: StoredCell, link: str, axes: Sequence[Axis]) -> dict[str, Any]:
    record = cell.record
    model, task, shots, seed = place(record, "model", "task", "shots", "seed")
    seconds = annealing_seconds(record)
    return {
        "method": method_title(record.identity.get("method")),
        "model": model,
        "task": task,
        "shots": "" if shots is None else shots,
        "seed": seed,
        "measures": [
            (each.percent(), percent(record.metrics.get(f"uncorrected/test/{m}")), chance(each.p))
            for m in ("accuracy", "cobias")
            for each in [Estimate.of([record], f"test/{m}")]
        ],
        "seconds": "" if seconds is None else f"{seconds:.2f}",
        "status": record.status.lower(),
        "run": cell.run_id[:8],
        "link": link,
        "setting": setting(record, axes),
    }


def _failure(cell: StoredCell, link: str) -> tuple[str, str, str]:
    method, task, shots, seed = place(cell.record, "method", "task", "shots", "seed")
    name = " ".join(
        filter(None, (method_title(method), str(task), shots_text(shots), f"seed {seed}"))
    )
    return name, last_line(cell.record.error or "") or "no traceback was kept", link


def _measured(text: str) -> str:
    """Set what a figure may be off by apart from the figure."""
    from markupsafe import Markup, escape

    found = _MEASURED.fullmatch(text)
    if found is None:
        return escape(text)
    figure, off_by, star = found.groups()
    mark = Markup('<span class="star">*</span>') if star else ""
    return Markup("{} <small>{}</small>{}").format(figure, off_by, mark)


def _is_number(table: ResultTable, column: int) -> bool:
    return not table.is_text(column)
