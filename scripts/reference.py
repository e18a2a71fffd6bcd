"""Makes the API reference from the docstrings: ``python scripts/reference.py FOLDER``."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pdoc

MODULES = (
    "dcs",
    "dcs.calibration",
    "dcs.corrections",
    "dcs.errors",
    "dcs.evaluation",
    "dcs.front",
    "dcs.generation",
    "dcs.importers",
    "dcs.methods",
    "dcs.metrics",
    "dcs.plugins",
    "dcs.prompting",
    "dcs.scorers",
    "dcs.scorers.openai_compatible",
    "dcs.scorers.transformers",
    "dcs.scorers.vllm",
    "dcs.seeds",
    "dcs.splits",
    "dcs.store",
    "dcs.uncertainty",
    "dcs.validation",
    "tracking",
    "tracking.class_tables",
    "tracking.comparison",
    "tracking.figures",
    "tracking.paper_tables",
    "tracking.report",
    "tracking.result_tables",
    "tracking.serving",
    "tracking.stored",
    "tracking.timing",
    "workflows.cells",
    "workflows.cluster",
    "workflows.compute",
    "workflows.config",
    "workflows.driver",
    "workflows.front",
    "workflows.judging",
    "workflows.mapping",
    "workflows.scoring",
    "workflows.settings",
    "workflows.stores",
    "workflows.studies",
    "workflows.sweep",
    "workflows.own_table",
    "workflows.tune",
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
