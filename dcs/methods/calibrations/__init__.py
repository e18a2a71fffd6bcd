"""Calibrations that can be fitted, by name.

Each is one object with everything that settings, samplers, and pages need to know of it.
"""

from __future__ import annotations

from typing import Final

from dcs.methods.calibrations.base import BATCH, NONE, FittedCalibration
from dcs.methods.calibrations.maps import DROPS, LINEAR, OFFSETS, PRODUCTS, SURROGATE

#: Every calibration of a setting but the mixture, which is made of these; in the order of pages.
CALIBRATIONS: Final[dict[str, FittedCalibration]] = {
    each.name: each for each in (NONE, BATCH, OFFSETS, LINEAR, PRODUCTS, SURROGATE, DROPS)
}
