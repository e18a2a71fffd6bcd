"""Division of class probabilities by the prior of the positions of options (PriDe).

Zheng et al. (2024), Large Language Models Are Not Robust Multiple Choice Selectors: the prior of a
model for the positions or letters of options is estimated from a few texts under several orders of
the options, and transferred to the others, which are scored under one order only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dcs.data.table import ProbabilityTable
from dcs.schemes.calibration import DEFAULT_FLOOR


def without_position_prior(
    orders: Sequence[Mapping[str, ProbabilityTable]],
) -> dict[str, ProbabilityTable]:
    """Return the tables of the first order, divided by the prior of each position.

    Parameters
    ----------
    orders : sequence of mapping of str to ProbabilityTable
        Tables by split under the cyclic orders 0, 1, ...: order k lists class ``(p + k) % N`` at
        position p. Those after the first have some rows of the first.

    Returns
    -------
    dict of str to ProbabilityTable
        By split. The prior is that of the optimization rows that all orders have: the softmax of
        the mean log-probability of each position.
    """
    first, *others = [order["optimization"] for order in orders]
    shared = set(first.ids).intersection(*(table.ids for table in others))
    logs = np.zeros(first.n_classes)
    for order, table in enumerate([first, *others]):
        rows = np.array([row in shared for row in table.ids])
        own = np.log(np.maximum(table.probs[rows], DEFAULT_FLOOR)).mean(axis=0)
        logs += np.roll(own, -order) / len(orders)
    weights = np.exp(logs.min() - logs)
    divided = {split: table.probs * weights for split, table in orders[0].items()}
    return {
        split: orders[0][split].with_probs(probs / probs.sum(axis=1, keepdims=True))
        for split, probs in divided.items()
    }
