"""Generate probability tables from a model and a task."""

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
        Number of demonstrations in the prompt; see :func:`dcs.prompting.parse_shots`.
    seed : int
        Demonstration seed.
    limit : int, optional
        Maximum number of rows per table; the first ones are used.
    progress : callable, optional
        Called with the number of texts just scored; :func:`count_queries` returns the total.

    Returns
    -------
    dict
        ``{"optimization": table, "test": table}``. All prompts share the same demonstrations,
        which are drawn from the optimization texts and excluded from that table.

    Raises
    ------
    ConfigError
        If `shots` or `limit` is invalid.
    ScoringError
        If the model cannot score the prompts.
    """
    demonstrations = select_demonstrations(task, shots, seed=seed)
    prefix = render_prefix(task, demonstrations)
    tables = {}
    for split, examples in _select_queries(task, demonstrations, limit).items():
        queries = [render_query(task, example.text) for example in examples]
        # A scorer of votes returns their number for each class.
        voted = getattr(scorer, "votes", None) is not None
        build = ProbabilityTable.from_counts if voted else ProbabilityTable.from_arrays
        tables[str(split)] = build(
            scorer.score(prefix, queries, task.label_words, progress=progress),
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
    return tables


def count_queries(task: Task, *, shots: Shots, seed: int, limit: int | None = None) -> int:
    """Return the number of texts that :func:`generate_tables` scores, for a progress bar."""
    demonstrations = select_demonstrations(task, shots, seed=seed)
    return sum(map(len, _select_queries(task, demonstrations, limit).values()))


def _select_queries(
    task: Task, demonstrations: Demonstrations, limit: int | None
) -> dict[Split, list[Example]]:
    """Return the examples of each split whose text is not used as a demonstration."""
    if limit is not None and limit < 1:
        raise ConfigError(f"limit {limit}: must be 1 or greater; omit it for no limit")
    # Demonstrations come from the optimization split. Test texts are filtered too, because the
    # splits of third-party tasks may overlap.
    return {
        split: [e for e in task.examples(split) if e.text not in demonstrations.texts][:limit]
        for split in SPLITS
    }
