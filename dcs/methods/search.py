"""The search of a setting: annealing for corrections of calibrated probabilities."""

from __future__ import annotations

from typing import Final

import numpy as np

from dcs.methods.calibrations import Labels, log_means, smooth_shares
from dcs.methods.parameters import Hyperparameters
from dcs.schemes.calibration import Array
from dcs.schemes.corrections import DONT_CHANGE, Correction, CorrectionSet, Weight

#: Every row is searched with several labels, some of them drawn; about this many in all.
_LABELLED_ROWS: Final = 4000
_MOST_LABELS: Final = 64

#: At this beta and above, shrinkage is entirely towards equal class proportions.
_BALANCED_BETA: Final = 0.3


def search(
    probs: Array, labels: Labels, setting: Hyperparameters, *, seed: int
) -> tuple[tuple[Correction, ...], int]:
    """Return the corrections of a setting and the number of evaluated solutions.

    A search on the labels alone fits their noise. Its labels are therefore mixed with some that
    are drawn from the calibrated probabilities, and the weights that it finds are shrunk towards
    those that need no search; see :attr:`Hyperparameters.prior_rows`.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Probabilities of rows, by calibrations of the setting that were not fitted on their labels:
        posteriors under equal class shares, if there are any.
    labels : array of int, shape [M]
        True class indices.
    setting : Hyperparameters
        The setting.
    seed : int
        Seed of the search.
    """
    # Import lazily: compiling the search should not delay reading a front or listing settings.
    from dcs.search.annealing import Problem, cooled

    n_rows, n = probs.shape
    if setting.corrections == "none":
        return (DONT_CHANGE,) * n, 0
    share = setting.smoothing(n_rows, n)
    balanced = setting.calibration != "none"
    shares = smooth_shares(labels, n)
    drawn = _smoothed_labels(probs * shares if balanced else probs, labels, share, seed=seed)
    names = tuple(map(str, range(n)))
    corrections = correction_set(probs, setting).limited(setting.memberships)
    problem = Problem(probs, drawn, names, corrections, setting.objective)
    choice, moves = cooled(problem, setting.schedule, seed=seed)
    chosen = problem.scheme(choice).corrections
    if setting.corrections == "weights" and share > 0.0:
        # From highest accuracy (fairness 0) to equal class shares (1).
        fairness = min(1.0, setting.beta / _BALANCED_BETA)
        target = (1.0 - fairness) * np.log(shares) if balanced else -fairness * log_means(probs)
        target = target - target.mean()
        chosen = to_weights((1.0 - share) * logarithms(chosen) + share * target)
    return chosen, moves


def _smoothed_labels(posterior: Array, labels: Labels, share: float, *, seed: int) -> Labels:
    """Return several labels of every row [C, M], a share of them drawn."""
    n_rows, n = posterior.shape
    copies = min(_MOST_LABELS, max(4, round(_LABELLED_ROWS / n_rows)))
    drawn = round(share * copies)
    if drawn == 0:
        return labels
    below = (posterior / posterior.sum(axis=1, keepdims=True)).cumsum(axis=1)
    # Spread evenly over the distribution of each row.
    first = np.random.default_rng(seed).random(n_rows)
    places = ((i + first) / drawn for i in range(drawn))
    targets = [np.minimum((each[:, None] > below).sum(axis=1), n - 1) for each in places]
    return np.stack([*targets, *[labels] * (copies - drawn)])


def correction_set(probs: Array, setting: Hyperparameters) -> CorrectionSet:
    """Return the corrections that a setting chooses from, with all membership functions."""
    if setting.corrections == "memberships":
        return CorrectionSet.furud()
    both = setting.corrections == "both"
    if setting.spacing == "linear":
        build = CorrectionSet.dcs if both else CorrectionSet.dnip
        return build(weight_scale=setting.weight_scale)
    # Only ratios of weights matter, so their useful range is that of the log-odds between the most
    # probable class of a row and the others.
    logs = np.log(np.maximum(probs, 1e-12))
    reach = 1.5 * float(np.quantile(logs.max(axis=1, keepdims=True) - logs, 0.9))
    return CorrectionSet.logarithmic(
        count=setting.weight_scale,
        smallest=float(np.exp(-min(max(reach, 0.1), 6.0))),
        largest=2.0 if both else 1.0,
        memberships=both,
    )


def logarithms(corrections: tuple[Correction, ...]) -> Array:
    """Return the logarithms of weights, centred because only their ratios matter."""
    logs = np.log([c.value if isinstance(c, Weight) else 1.0 for c in corrections])
    return np.asarray(logs - logs.mean())


def to_weights(logs: Array) -> tuple[Correction, ...]:
    """Convert logarithms to weights, scaled to a maximum of 1 and clipped to a useful range."""
    return tuple(Weight(float(w)) for w in np.exp(np.maximum(logs - logs.max(), -30.0)))
