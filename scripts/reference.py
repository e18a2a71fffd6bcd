"""Makes the API reference from the docstrings: ``python scripts/reference.py FOLDER``."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pdoc

MODULES = (
    "dcs",
    "dcs.schemes.calibration",
    "dcs.schemes.corrections",
    "dcs.errors",
    "dcs.search.problem",
    "dcs.selection.front",
    "dcs.scoring.generation",
    "dcs.data.importers",
    "dcs.selection.methods",
    "dcs.evaluation.metrics",
    "dcs.plugins",
    "dcs.prompting",
    "dcs.scoring",
    "dcs.scoring.openai",
    "dcs.scoring.transformers",
    "dcs.scoring.vllm",
    "dcs.seeds",
    "dcs.data.splits",
    "dcs.scoring.cache",
    "dcs.evaluation.uncertainty",
    "dcs.selection.cross_validation",
    "tracking",
    "tracking.results.comparison",
    "tracking.results.figures",
    "tracking.results.formats",
    "tracking.results.frames",
    "tracking.results.report",
    "tracking.results.tables",
    "tracking.store.serving",
    "tracking.store.queries",
    "workflows.plan",
    "workflows.cluster.connect",
    "workflows.tuning.cell",
    "workflows.config.sweep",
    "workflows.cluster.driver",
    "workflows.tuning.front",
    "workflows.cluster.parallel",
    "workflows.config.scoring",
    "workflows.config.tuner",
    "workflows.tables",
    "workflows.tuning.study",
    "workflows.plan",
    "workflows.tuning.cell",
    "workflows.tuning.paper",
)
"""What a program may import; docs/reference.md says what each is for."""


def build(folder: Path) -> list[Path]:
    """Write the pages into `folder` and return them; a warning is an error."""
    pdoc.render.configure(docformat="numpy", show_source=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # What the packages that are looked at warn of by themselves is not about these pages.
        for category in (DeprecationWarning, FutureWarning, PendingDeprecationWarning):
            warnings.simplefilter("ignore", category)
        pdoc.pdoc(*MODULES, output_directory=folder)
    return sorted(folder.rglob("*.html"))


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference")
    print(f"{len(build(target))} pages: open {target / 'index.html'}")
