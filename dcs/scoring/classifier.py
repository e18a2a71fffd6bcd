"""Texts to corrected labels: the model, prompt and scheme of a fit as one classifier."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.data.table import ProbabilityTable
from dcs.errors import SchemeError, ScoringError, show
from dcs.prompting.files import TaskFile, described_task, text_of
from dcs.prompting.tasks import (
    Demonstrations,
    Example,
    PromptPrefix,
    Task,
    prompt_hash,
    render_prefix,
    render_query,
)
from dcs.schemes.apply import normalised
from dcs.schemes.scheme import CorrectionScheme
from dcs.scoring import Progress, Scorer, StoredScorer, load_scorer
from dcs.scoring.base import Prompts, Scores, score_rows, scored_rows

Text = str | Mapping[str, Any]
"""A text, or a row with the fields of the task."""


@dataclass(frozen=True, slots=True)
class ScoredBy:
    """How the texts of a table were scored, and other texts will be.

    Attributes
    ----------
    model, revision : str
        The model, and the exact version of its weights.
    scoring : mapping
        The engine, under ``engine``, and its options.
    task : Task
        The task, without texts.
    file : TaskFile
        Its file.
    prefix : PromptPrefix
        Instruction and demonstrations.
    """

    model: str
    revision: str
    scoring: Mapping[str, Any]
    task: Task
    file: TaskFile
    prefix: PromptPrefix

    @classmethod
    def of(cls, scheme: CorrectionScheme, *, source: str = "scheme") -> ScoredBy:
        """Return how the table of a scheme was scored.

        Raises
        ------
        SchemeError
            If the scheme was not fitted on one table of scored texts, or its prompt was changed.
        """
        table = scheme.provenance.get("table", {})
        if "prompt" not in table:
            raise SchemeError(
                f"{source}: was not fitted on one table of scored texts; correct class "
                "probabilities by dcs apply, or score and fit again with a new --output"
            )
        prompt = table["prompt"]
        task, file = described_task(prompt["task"], source=f"{source}: prompt")
        shown = tuple(Example(**each) for each in prompt["demonstrations"])
        demonstrations = Demonstrations(shown, table["shots"], table["demonstration_seed"])
        if prompt_hash(task, demonstrations) != table["prompt_hash"]:
            raise SchemeError(
                f"{source}: its prompt is not that of the fitted rows; fit the scheme again"
            )
        prefix = render_prefix(task, demonstrations)
        return cls(table["model"], table["revision"], prompt["scoring"], task, file, prefix)

    def load(self, *, model: str | None = None, **options: Any) -> Scorer:
        """Load the scorer; `model` and `options` replace what is recorded.

        Raises
        ------
        ScoringError
            If it cannot be loaded, or is another version of the recorded model.
        """
        scorer = load_scorer(model or self.model, **{**self.scoring, **options})
        if scorer.revision != self.revision and model is None and "base_url" not in options:
            scorer.close()
            raise ScoringError(
                f"model {show(self.model)} is now {show(scorer.revision)}; the scheme was fitted "
                f"on {show(self.revision)}: fit it again, or name the model to use this one"
            )
        return scorer


class Classifier(AbstractContextManager["Classifier"]):
    """A fitted scheme with the model and prompt whose class probabilities it corrects.

    Parameters
    ----------
    scheme : CorrectionScheme
        The scheme.
    scored_by : ScoredBy
        How its table was scored.
    scorer : Scorer
        The loaded model.

    Examples
    --------
    >>> with dcs.Classifier.load("dcs-runs/mood-dcs/scheme.json") as classifier:
    ...     classifier.predict(["It broke at once.", "I like it."])
    ['unhappy', 'happy']
    """

    def __init__(self, scheme: CorrectionScheme, scored_by: ScoredBy, scorer: Scorer) -> None:
        self.scheme, self.scored_by, self.scorer = scheme, scored_by, scorer

    @classmethod
    def load(
        cls,
        scheme: str | os.PathLike[str] | CorrectionScheme,
        *,
        store: str | os.PathLike[str] | None = None,
        **replaced: Any,
    ) -> Classifier:
        """Load the model of a scheme that was fitted on scored texts.

        Parameters
        ----------
        scheme : path-like or CorrectionScheme
            The scheme, or its file as written by `dcs tune`.
        store : path-like, optional
            Folder in which scored prompts are kept, and looked up.
        **replaced
            ``model``, ``engine`` or options of the engine, instead of those recorded.

        Raises
        ------
        SchemeError
            If the scheme has no prompt.
        ScoringError
            If the model cannot be loaded, or is another version of the recorded one.
        """
        if isinstance(scheme, CorrectionScheme):
            scored_by = ScoredBy.of(scheme)
        else:
            source, scheme = os.fspath(scheme), CorrectionScheme.load(scheme)
            scored_by = ScoredBy.of(scheme, source=source)
        scorer = scored_by.load(**replaced)
        return cls(scheme, scored_by, scorer if store is None else StoredScorer(scorer, store))

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory of the model. The classifier cannot be used afterwards."""
        self.scorer.close()

    def score(self, texts: Iterable[Text], *, progress: Progress | None = None) -> Scores:
        """Return uncorrected class probabilities, and by row why those that are NaN are missing.

        Parameters
        ----------
        texts : iterable of str or mapping
            M texts, or rows with the fields of the task.
        progress : callable, optional
            Called with the number of prompts just scored.

        Returns
        -------
        probs : float64 array [M, N]
            Class probabilities.
        reasons : dict of int to str
            Why rows could not be scored.
        """
        by, reasons = self.scored_by, {}
        queries: dict[int, str] = {}
        rows = [*texts]
        for row, values in enumerate(rows):
            try:
                queries[row] = render_query(by.task, text_of(by.file, values))
            except ValueError as error:
                reasons[row] = str(error)
        places = np.array([*queries], dtype=np.intp)
        prompts = Prompts(by.prefix, [*queries.values()], by.task.label_words)
        found, failed = score_rows(self.scorer, prompts, progress)
        reasons |= {int(places[row]): why for row, why in failed.items()}
        done = ~np.isnan(found).any(axis=1)
        if "votes" in self.scorer.settings and done.any():
            found[done] = ProbabilityTable.from_counts(found[done], None).probs
        probs = np.full((len(rows), by.task.n_classes), np.nan)
        probs[places] = normalised(found)
        return probs, dict(sorted(reasons.items()))

    def predict_proba(self, texts: Iterable[Text]) -> NDArray[np.float64]:
        """Return the corrected class probabilities of texts, [M, N]; see :meth:`score`.

        Raises
        ------
        RowsError
            If some texts cannot be scored.
        """
        return self.scheme.apply(scored_rows(*self.score(texts)))

    def predict(self, texts: Iterable[Text]) -> list[str]:
        """Return the corrected labels of texts.

        Parameters
        ----------
        texts : iterable of str or mapping
            As in :meth:`score`.

        Raises
        ------
        RowsError
            If some texts cannot be scored.
        """
        predicted = self.scheme.predict(scored_rows(*self.score(texts)))
        return [self.scheme.classes[k] for k in predicted]
