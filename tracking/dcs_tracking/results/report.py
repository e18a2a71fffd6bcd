"""The report of a sweep: a self-contained HTML file."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dcs.errors import InvalidInputError
from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking.archive import Archive
from dcs_tracking.records import StoredCell
from dcs_tracking.results import sweep_tables
from dcs_tracking.results.cells import Cells, method_title, name_of, text_of
from dcs_tracking.results.figures import figure_bytes, overview_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def render_report(
    stored: Sequence[StoredCell],
    *,
    title: str,
    link: Callable[[StoredCell], str],
    archive: Archive | None = None,
) -> str:
    """Return the report of a sweep as HTML.

    Parameters
    ----------
    stored : sequence of StoredCell
        The sweep's cells, from `dcs_tracking.store.queries.stored_cells`.
    title : str
        Name of the sweep.
    link : callable
        Returns the URL of a cell's run in MLflow; empty if it has none.
    archive : Archive, optional
        Output folder, for the schemes of cells that were read without them.

    Returns
    -------
    str
        A self-contained page.

    Raises
    ------
    InvalidInputError
        Raised if no cell is finished.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    cells = Cells.of(each.record for each in stored)
    failures = [_get_failure(each, link(each)) for each in stored if not each.record.finished]
    if not cells.records:
        fault = f"{title}: no cell is finished, so there is nothing to report"
        for name, reason, _ in failures[:1]:
            fault += f"; {name} failed with: {reason}; run the sweep again with --retry-failed"
        raise InvalidInputError(fault)
    environment = Environment(
        loader=PackageLoader("dcs_tracking"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    links = {each.record.key: link(each) for each in stored}
    # On a telephone, panels stand below each other.
    wide, narrow = overview_figures(cells), overview_figures(cells, columns=1)
    return environment.get_template("report.html.jinja").render(
        title=title,
        facts=_collect_facts(cells),
        main=sweep_tables.main_results(cells),
        result_figures=[
            (caption, round(96 * figure.get_size_inches()[0]), _embed(figure), _embed(small))
            for name, (caption, figure) in wide.items()
            for _, small in [narrow.get(name, (caption, figure))]
        ],
        ablations=sweep_tables.ablation_tables(cells),
        schemes=_build_schemes(cells, links, archive),
        classes=sweep_tables.class_accuracies(cells),
        failures=failures,
    )


def _collect_facts(cells: Cells) -> list[tuple[str, str]]:
    facts = [("cells", str(len(cells.records)))]
    for name in ("model", "task", "shots", "method", "seed"):
        as_text = method_title if name == "method" else text_of
        texts = dict.fromkeys(map(as_text, cells.frame[name]))
        facts.append((name, ", ".join(filter(None, texts))))
    facts += [(axis.title, ", ".join(map(axis.short, axis.in_order))) for axis in cells.axes]
    return [(name, text) for name, text in facts if text]


def _build_schemes(
    cells: Cells, links: Mapping[str, str], archive: Archive | None
) -> list[dict[str, Any]]:
    """Return the best schemes, which are models in MLflow, too.

    Each has a ``name``, a ``link``, the name of its ``calibration``, and ``classes``: name, kind
    of correction and its effect.
    """
    schemes = []
    for cell in cells.best_schemes:
        record = cell if archive is None else archive.with_scheme(cell)
        scheme = CorrectionScheme.from_dict(record.scheme or {}, source=f"cell {record.key}")
        corrections = zip(scheme.classes, scheme.corrections, strict=True)
        schemes.append(
            {
                "name": name_of(record.who, "task", "model", "shots", "seed", "method"),
                "link": links[record.key],
                "calibration": scheme.calibration.name if scheme.calibration else "",
                "classes": [(name, each.kind, each.effect) for name, each in corrections],
            }
        )
    return schemes


def _embed(figure: Figure) -> str:
    """Return a figure as a data URL."""
    return f"data:image/svg+xml;base64,{b64encode(figure_bytes(figure, 'svg')).decode()}"


def _get_failure(cell: StoredCell, link: str) -> tuple[str, str, str]:
    name = name_of(cell.record.who, "method", "task", "shots", "seed")
    return name, cell.record.reason, link
