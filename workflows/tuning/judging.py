"""What both ways of tuning share: how schemes are judged and preferred, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass

from dcs.data.table import ProbabilityTable
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.annealing import AnnealingResult
from dcs.selection.front import Preference
from tracking import TrialRecord
from workflows.config.tuner import TunerSettings

__all__ = ["Fitted", "judge", "preference", "selection_score"]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A scheme, and how it was found.

    Attributes
    ----------
    scheme : CorrectionScheme
        The chosen scheme.
    trials : tuple of TrialRecord
        All settings that were judged, in order.
    best : TrialRecord or None
        The one that the scheme comes from; None if nothing was to choose.
    annealing : AnnealingResult or None
        The search that found the scheme, where it was one search on one set of rows.
    """

    scheme: CorrectionScheme
    trials: tuple[TrialRecord, ...] = ()
    best: TrialRecord | None = None
    annealing: AnnealingResult | None = None


def judge(scheme: CorrectionScheme, table: ProbabilityTable) -> ClassificationMetrics:
    """Return the metrics of a scheme's predictions on a table.

    Parameters
    ----------
    scheme : CorrectionScheme
        The scheme.
    table : ProbabilityTable
        Rows with their labels.

    Returns
    -------
    ClassificationMetrics
        Accuracy, COBias and class accuracies.
    """
    return ClassificationMetrics.from_predictions(
        table.labels, scheme.predict(table.probs), table.n_classes
    )


def selection_score(metrics: ClassificationMetrics) -> float:
    """Return accuracy minus COBias: what a trial is chosen for on the development rows.

    The annealing objective cannot serve here, since trials differ in beta and tau.

    Parameters
    ----------
    metrics : ClassificationMetrics
        Of the development rows.

    Returns
    -------
    float
        Between -1 and 1.
    """
    return metrics.accuracy - metrics.cobias


def preference(settings: TunerSettings) -> Preference:
    """Return which point of a trade-off the settings ask for.

    Parameters
    ----------
    settings : TunerSettings
        The settings, in points.

    Returns
    -------
    Preference
        The same, in shares.
    """

    def share(points: float | None) -> float | None:
        return None if points is None else points / 100.0

    return Preference(
        prefer=settings.prefer,
        max_accuracy_loss=share(settings.max_accuracy_loss),
        max_cobias=share(settings.max_cobias),
    )
