"""``dcs generate``: the class probabilities of a model on a task, as tables."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workflows.cli._engine import Yes, with_engine_options
from workflows.cli._options import Data, Output

if TYPE_CHECKING:
    from workflows.cli._scoring import TablePair
    from workflows.config.scoring import ScoringSettings

__all__ = ["generate"]


@with_engine_options
def generate(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="tiny_lm, a model folder, a hub id, or a served model.",
        ),
    ],
    task: Annotated[
        list[str],
        typer.Option(
            "--task", metavar="TASK", help="Task, or a task YAML; repeatable (see dcs tasks)."
        ),
    ],
    data: Data = None,
    shots: Annotated[
        str, typer.Option(metavar="K,...", help="Demonstrations: 0, 1, 5 or N (one per class).")
    ] = "1",
    seeds: Annotated[str, typer.Option(metavar="S,...", help="Demonstration seeds.")] = "0",
    output: Output = Path("dcs-runs"),
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many texts of each split.")
    ] = None,
    *,
    scoring: dict[str, Any],
    yes: Yes = False,
) -> None:
    """Write the class probabilities of a model: an optimization and a test table per prompt.

    Every prompt is scored once: what a stopped run has done is found again, and tables that are
    there are not made again. The API key of a server is read from OPENAI_API_KEY.
    """
    from dcs.prompting import get_task, parse_shots
    from workflows.cli._console import console
    from workflows.cli._scoring import TablePair
    from workflows.config.scoring import checked_scoring

    settings = checked_scoring(**scoring)
    pairs = [
        TablePair.plan(
            output,
            get_task(name, data),
            model=model,
            identity=settings.identity(model),
            shots=parse_shots(count),
            seed=seed,
            limit=limit,
        )
        for name in dict.fromkeys(task)
        for count in dict.fromkeys(shots.split(","))
        for seed in _numbers(seeds)
    ]
    rest = [pair for pair in pairs if not pair.is_done()]
    clock = time.perf_counter()
    scored = 0
    if rest:
        scored = _generate(rest, model, settings, output, yes)
    for pair in pairs:
        earlier = "" if pair in rest else " (there already)"
        console.print(f"{pair.folder}{earlier}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{2 * len(rest)} tables written in {time.perf_counter() - clock:.1f} s, "
        f"{scored} prompts scored; {2 * (len(pairs) - len(rest))} were there already",
        highlight=False,
    )
    first = pairs[0]
    console.print(
        f"next: [bold]dcs tune {first.path('optimization')} --test {first.path('test')}[/bold]",
        soft_wrap=True,
    )


def _numbers(seeds: str) -> list[int]:
    from dcs.errors import ConfigError
    from dcs.messages import show

    if not re.fullmatch(r"[0-9]{1,18}(,[0-9]{1,18})*", seeds.replace(" ", "")):
        raise ConfigError(f"--seeds {show(seeds)}: write whole numbers from 0 on, e.g. 0,1,2")
    return list(dict.fromkeys(int(seed) for seed in seeds.split(",")))


def _generate(
    pairs: list[TablePair], model: str, settings: ScoringSettings, output: Path, yes: bool
) -> int:
    from dcs.scoring import StoredScorer
    from dcs.scoring.cache import ShardStore
    from dcs.scoring.generation import count_queries
    from workflows.cli._console import console, count_bar
    from workflows.cli._scoring import announce

    shards = ShardStore(settings.store or output / "shards")
    with console.status(f"loading {model}"):
        inner = settings.load(model)
    prompts = [(pair.task, pair.shots, pair.seed, pair.limit) for pair in pairs]
    announce(inner, prompts, price=settings.price, yes=yes)
    scorer = StoredScorer(inner, shards)
    total = sum(
        count_queries(task, shots=shots, seed=seed, limit=limit)
        for task, shots, seed, limit in prompts
    )
    try:
        with count_bar("scoring prompts", total) as progress:
            for pair in pairs:
                pair.generate(scorer, progress)
    finally:
        scorer.close()
    for line in scorer.report():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return scorer.scored
