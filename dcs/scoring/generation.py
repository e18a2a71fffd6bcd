"""From a model and a task to probability tables."""

from __future__ import annotations

from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import ConfigError
from dcs.prompting import (
    SPLITS,
    Demonstrations,
    Example,
    Shots,
    Split,
    Task,
    prompt_hash,
    render_prefix,
    render_query,
    select_demonstrations,
)
from dcs.scoring.base import Progress, Scorer

__all__ = ["count_queries", "generate_tables", "queries_of"]


def generate_tables(
    scorer: Scorer,
    task: Task,
    *,
    shots: Shots,
    seed: int,
    limit: int | None = None,
    progress: Progress | None = None,
) -> dict[str, ProbabilityTable]:
    """Score the texts of a task with a model.

    Parameters
    ----------
    scorer : Scorer
        The loaded model.
    task : Task
        The task.
    shots : int or "N"
        Demonstrations in the prompt; see :func:`dcs.prompting.parse_shots`.
    seed : int
        Demonstration seed.
    limit : int, optional
        At most that many rows per table: the first ones.
    progress : callable, optional
        Called with the number of texts just scored; :func:`count_queries` gives their total.

    Returns
    -------
    dict
        ``{"optimization": table, "test": table}``. All prompts have the same demonstrations,
        which come from the optimization texts and are left out of that table.

    Raises
    ------
    ConfigError
        If `shots` or `limit` is not allowed.
    ScoringError
        If the model cannot score the prompts.
    """
    demonstrations = select_demonstrations(task, shots, seed=seed)
    prefix = render_prefix(task, demonstrations)
    tables = {}
    for split in SPLITS:
        examples = queries_of(task, demonstrations, split, limit)
        probs = scorer.score(
            prefix,
            [render_query(task, example.text) for example in examples],
            task.label_words,
            progress=progress,
        )
        tables[split] = ProbabilityTable.from_arrays(
            probs,
            [example.label for example in examples],
            classes=task.classes,
            ids=[example.id for example in examples],
            provenance=Provenance(
                model=scorer.model,
                revision=scorer.revision,
                task=task.name,
                shots=demonstrations.shots,
                demonstration_seed=seed,
                split=split,
                prompt_hash=prompt_hash(task, demonstrations),
                scorer=scorer.name,
                scorer_version=scorer.version,
            ),
        )
    return {str(split): table for split, table in tables.items()}


def count_queries(task: Task, *, shots: Shots, seed: int, limit: int | None = None) -> int:
    """Return how many texts :func:`generate_tables` scores, for a progress bar."""
    demonstrations = select_demonstrations(task, shots, seed=seed)
    return sum(len(queries_of(task, demonstrations, split, limit)) for split in SPLITS)


def queries_of(
    task: Task, demonstrations: Demonstrations, split: Split, limit: int | None
) -> list[Example]:
    """Return the texts of a split that are scored: those that no demonstration shows.

    Raises
    ------
    ConfigError
        If `limit` is not allowed.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit {limit}: allowed are 1 or more rows, or no limit")
    # Demonstrations come from the optimization texts, and a task's splits have no text in
    # common; but tasks of other makers may not keep to that.
    kept = [e for e in task.examples(split) if e.text not in demonstrations.texts]
    return kept[:limit]
