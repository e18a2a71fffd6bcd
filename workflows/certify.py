"""How far a chosen scheme is from the proven optimum of its own search."""

from __future__ import annotations

from dcs.errors import InvalidInputError
from dcs.exact import exact_search
from dcs.methods import Method
from dcs.objective import Objective
from dcs.probabilities import ProbabilityTable
from tracking import CellRecord
from workflows.settings import TunerSettings
from workflows.tune import study_rows

__all__ = ["certify"]


def certify(
    table: ProbabilityTable, method: Method, record: CellRecord, *, settings: TunerSettings
) -> float:
    """Return how far the chosen scheme's Z is above the proven optimum of its own search.

    Parameters
    ----------
    table : ProbabilityTable
        The optimization rows that the cell was tuned on.
    method : Method
        The cell's method.
    record : CellRecord
        The finished cell.
    settings : TunerSettings
        The cell's tuner.

    Returns
    -------
    float
        0 where the optimum was found.

    Raises
    ------
    InvalidInputError
        There are too many classes for an exhaustive search.
    """
    corrections = method.correction_set(
        record.params.get("weight_scale", 30), memberships=settings.memberships
    )
    if corrections is None:
        raise InvalidInputError(f"method {method.name!r} searches nothing that could be certified")
    rows, _ = study_rows(table, settings=settings, seed=record.identity["seed"])
    optimum = exact_search(
        rows.probs,
        rows.labels,
        corrections=corrections,
        objective=Objective(beta=record.params["beta"], tau=record.params["tau"]),
    )
    return record.metrics["opt/z"] - optimum.z
