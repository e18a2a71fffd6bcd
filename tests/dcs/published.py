"""Figures of the published implementation, for the tests that compare with it.

The corrections are numbered as published: 19 memberships, then the weights 1/30 .. 30/30.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PATH = Path(__file__).parent / "data" / "published_figures.npz"


def published_figures() -> dict[str, NDArray[Any]]:
    """Return all figures by name: rules on a grid, and solutions judged on three tables."""
    with np.load(_PATH) as figures:
        return dict(figures)
