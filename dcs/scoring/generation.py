"""Texts and a model: the probability tables of a task, and the corrected labels of a fit."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import ConfigError, InvalidInputError, SchemeError, ScoringError, show
from dcs.prompting.files import described_task, row_text
from dcs.prompting.tasks import (
    SPLITS,
    Demonstrations,
    Example,
    PromptPrefix,
    Shots,
    Split,
    Task,
    prompt_hash,
    render_prefix,
    render_query,
    select_demonstrations,
)
from dcs.schemes.apply import normalised
from dcs.schemes.scheme import CorrectionScheme
from dcs.scoring import Advance, Scorer, StoredScorer, load_scorer
from dcs.scoring.base import Prompts, Scores, score_rows, scored_rows

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScorerInfo:
    """What a loaded model says about its numbers; see :class:`dcs.scoring.Scorer`.

    `options` are those of the engine as they may be recorded, if known.
    """

    name: str
    version: str
    model: str
    revision: str
    settings: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, scorer: Scorer, options: Mapping[str, Any] | None = None) -> ScorerInfo:
        """Return the information of a scorer."""
        about = scorer.name, scorer.version, scorer.model, scorer.revision
        return cls(*about, dict(scorer.settings), dict(options or {}))


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of a pair of tables, which share their demonstrations.

    Attributes
    ----------
    task : Task
        The task.
    demonstrations : Demonstrations
        The demonstrations of all prompts.
    examples : dict of str to list of Example
        The rows of each table, by split.
    texts : tuple of str
        The distinct texts of all rows, each of which is scored once.
    """

    task: Task
    demonstrations: Demonstrations
    examples: dict[Split, list[Example]]
    texts: tuple[str, ...]

    @classmethod
    def select(cls, task: Task, *, shots: Shots, seed: int, limit: int | None = None) -> PromptSet:
        """Select the demonstrations and the rows of a task.

        Parameters
        ----------
        task : Task
            The task.
        shots : int or "N"
            Number of demonstrations in the prompt; see :func:`dcs.prompting.tasks.parse_shots`.
        seed : int
            Demonstration seed.
        limit : int, optional
            Maximum number of rows per table; the first ones are used.

        Raises
        ------
        ConfigError
            If `shots` or `limit` is invalid, or no text is left.
        """
        if limit is not None and limit < 1:
            raise ConfigError(f"limit {limit}: must be 1 or greater; omit it for no limit")
        shown = select_demonstrations(task, shots, seed=seed)
        hidden, examples = {e.text for e in shown.examples}, dict[Split, list[Example]]()
        for split in SPLITS:
            # Demonstrations come from the optimization split. Test texts are filtered too, because
            # the splits of third-party tasks may overlap.
            rows = [example for example in task.examples(split) if example.text not in hidden]
            if not rows:
                raise ConfigError(
                    f"task {task.name!r}: all {split} texts are demonstrations; use fewer shots"
                )
            examples[split] = rows[:limit]
        texts = (example.text for rows in examples.values() for example in rows)
        return cls(task, shown, examples, tuple(dict.fromkeys(texts)))

    def prompts(self, part: slice = slice(None)) -> Prompts:
        """Return the arguments of :meth:`dcs.scoring.Scorer.score` for ``texts[part]``."""
        queries = [render_query(self.task, text) for text in self.texts[part]]
        prefix = render_prefix(self.task, self.demonstrations)
        return Prompts(prefix, queries, self.task.label_words)

    def tables(
        self, probs: NDArray[np.float64], scorer: ScorerInfo, reasons: Mapping[int, str]
    ) -> dict[str, ProbabilityTable]:
        """Return ``{"optimization": table, "test": table}``.

        Parameters
        ----------
        probs : float64 array [len(texts), N]
            The class probabilities of each text, or the votes for each class.
        scorer : ScorerInfo
            The model that returned them.
        reasons : mapping of int to str
            Why texts could not be scored, by row; the tables are without them.

        Raises
        ------
        ScoringError
            If no text of a split could be scored.
        """
        rows = {text: row for row, text in enumerate(self.texts)}
        voted = "votes" in scorer.settings
        build = ProbabilityTable.from_counts if voted else ProbabilityTable.from_arrays
        missing, tables = self.missing(reasons), {}
        # What it takes to score other texts alike.
        prompt = {
            "scoring": {"engine": scorer.name, **scorer.options},
            "task": self.task.file.described,
            "demonstrations": [asdict(example) for example in self.demonstrations.examples],
        }
        for split, every in self.examples.items():
            examples = [example for example in every if example.id not in missing]
            if not examples:
                raise ScoringError(
                    f"task {self.task.name!r}: no {split} text could be scored; "
                    f"{every[0].id}: {missing[every[0].id]}"
                )
            own = [rows[example.text] for example in examples]
            tables[str(split)] = build(
                probs[own],
                [example.label for example in examples],
                classes=self.task.classes,
                ids=[example.id for example in examples],
                groups=own,
                provenance=Provenance(
                    model=scorer.model,
                    revision=scorer.revision,
                    task=self.task.name,
                    shots=self.demonstrations.shots,
                    demonstration_seed=self.demonstrations.seed,
                    split=split,
                    prompt_hash=prompt_hash(self.task, self.demonstrations),
                    scorer=scorer.name,
                    scorer_version=scorer.version,
                    missing_rows=len(every) - len(examples) or None,
                    prompt=prompt,
                ),
            )
        return tables

    @property
    def unlabelled(self) -> str:
        """How many texts have no label, in a line for the user; empty if all have one."""
        counts = {split: sum(e.label < 0 for e in own) for split, own in self.examples.items()}
        found = [f"{n} of {len(self.examples[s])} {s}" for s, n in counts.items() if n]
        return f"{' and '.join(found)} texts have no label" if found else ""

    def missing(self, reasons: Mapping[int, str]) -> dict[str, str]:
        """Return why texts could not be scored, by the id of each example."""
        texts = {self.texts[row]: reason for row, reason in reasons.items()}
        examples = (example for every in self.examples.values() for example in every)
        return {each.id: texts[each.text] for each in examples if each.text in texts}


def generate_tables(
    scorer: Scorer,
    task: Task,
    *,
    shots: Shots,
    seed: int,
    limit: int | None = None,
    progress: Advance | None = None,
) -> dict[str, ProbabilityTable]:
    """Score the texts of a task with a model.

    Parameters
    ----------
    scorer : Scorer
        The loaded model.
    task, shots, seed, limit
        See :meth:`PromptSet.select`.
    progress : callable, optional
        Called with the number of texts just scored, of ``len(PromptSet.texts)``.

    Returns
    -------
    dict
        ``{"optimization": table, "test": table}``. All prompts share the same demonstrations,
        which are drawn from the optimization texts and excluded from both tables. A text that
        cannot be scored is missing, with a warning.

    Raises
    ------
    ConfigError
        If `shots` or `limit` is invalid.
    ScoringError
        If the model cannot score the prompts, or none of a split.
    """
    chosen = PromptSet.select(task, shots=shots, seed=seed, limit=limit)
    probs, reasons = score_rows(scorer, chosen.prompts(), progress)
    for name, reason in chosen.missing(reasons).items():
        _log.warning("%s is missing from the tables: %s", name, reason)
    return chosen.tables(probs, ScorerInfo.of(scorer), reasons)


#: A text, or a row with the fields of the task.
Text = str | Mapping[str, Any]


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
    prefix : PromptPrefix
        Instruction and demonstrations.
    """

    model: str
    revision: str
    scoring: Mapping[str, Any]
    task: Task
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
        task = described_task(prompt["task"], source=f"{source}: prompt")
        shown = tuple(Example(**each) for each in prompt["demonstrations"])
        demonstrations = Demonstrations(shown, table["shots"], table["demonstration_seed"])
        if prompt_hash(task, demonstrations) != table["prompt_hash"]:
            raise SchemeError(
                f"{source}: its prompt is not that of the fitted rows; fit the scheme again"
            )
        if {*task.classes} != {*scheme.classes}:
            raise SchemeError(f"{source}: its classes are not those of its prompt; fit it again")
        prefix = render_prefix(task, demonstrations)
        return cls(table["model"], table["revision"], prompt["scoring"], task, prefix)


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
        model: str | None = None,
        **options: Any,
    ) -> Classifier:
        """Load the model of a scheme that was fitted on scored texts.

        Parameters
        ----------
        scheme : path-like or CorrectionScheme
            The scheme, or its file as written by `dcs tune`.
        store : path-like, optional
            Folder in which scored prompts are kept, and looked up.
        model : str, optional
            The model to use instead of the recorded one.
        **options
            ``engine`` or options of the engine, instead of those recorded.

        Raises
        ------
        SchemeError
            If the scheme has no prompt.
        ScoringError
            If the model cannot be loaded, or is another version of the recorded one.
        """
        source = "scheme"
        if not isinstance(scheme, CorrectionScheme):
            source, scheme = os.fspath(scheme), CorrectionScheme.load(scheme)
        by = ScoredBy.of(scheme, source=source)
        scorer = load_scorer(model or by.model, **{**by.scoring, **options})
        if scorer.revision != by.revision and model is None and "base_url" not in options:
            scorer.close()
            raise ScoringError(
                f"model {show(by.model)} is now {show(scorer.revision)}; the scheme was fitted "
                f"on {show(by.revision)}: fit it again, or name the model to use this one"
            )
        return cls(scheme, by, scorer if store is None else StoredScorer(scorer, store))

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory of the model. The classifier cannot be used afterwards."""
        self.scorer.close()

    def score(self, texts: Iterable[Text], *, progress: Advance | None = None) -> Scores:
        """Return uncorrected class probabilities, and by row why those that are NaN are missing.

        Parameters
        ----------
        texts : iterable of str or mapping, or DataFrame
            M texts, or rows with the fields of the task.
        progress : callable, optional
            Called with the number of prompts just scored.

        Returns
        -------
        probs : float64 array [M, N]
            Class probabilities, in the order of the classes of the scheme.
        reasons : dict of int to str
            Why rows could not be scored.

        Raises
        ------
        InvalidInputError
            If `texts` is a single text or row.
        """
        by, reasons = self.scored_by, {}
        queries: dict[int, str] = {}
        if isinstance(texts, str | bytes | Mapping):
            raise InvalidInputError(f"texts {show(texts, 40)}: is a single one; give a list")
        given: Any = texts.to_pandas() if hasattr(texts, "to_pandas") else texts
        rows = given.to_dict("records") if hasattr(given, "columns") else [*given]
        for row, values in enumerate(rows):
            try:
                queries[row] = render_query(by.task, row_text(by.task.file, values))
            except ValueError as error:
                reasons[row] = str(error)
        places = np.array([*queries], dtype=np.intp)
        prompts = Prompts(by.prefix, [*queries.values()], by.task.label_words)
        found, failed = score_rows(self.scorer, prompts, progress)
        reasons |= {int(places[row]): why for row, why in failed.items()}
        done = ~np.isnan(found).any(axis=1)
        if "votes" in self.scorer.settings and done.any():
            found[done] = ProbabilityTable.from_counts(found[done], None).probs
        probs = np.full((len(rows), len(by.task.classes)), np.nan)
        # The scheme may have the classes in another order.
        order = [by.task.classes.index(name) for name in self.scheme.classes]
        probs[places] = normalised(found)[:, order]
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
