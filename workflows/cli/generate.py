"""``dcs generate``: the class probabilities of a model on a task, as tables."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workflows.cli._engine import (
    ApiName,
    BaseURL,
    Concurrency,
    Device,
    Dtype,
    Engine,
    LabelRuleName,
    Memory,
    Missing,
    Price,
    Store,
    TensorParallel,
    TokenizerName,
    TopLogprobs,
    Yes,
)
from workflows.cli._options import Data

if TYPE_CHECKING:
    from workflows.cli._scoring import TablePair
    from workflows.scoring import ScoringSettings

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("generate")(generate)


def generate(
    model: Annotated[
        str,
        typer.Option("--model", help="tiny_lm, a model folder, a hub id, or a served model."),
    ],
    task: Annotated[
        list[str], typer.Option("--task", help="Task, or a task YAML; repeatable (see dcs tasks).")
    ],
    data: Data = None,
    shots: Annotated[
        str, typer.Option(metavar="K,...", help="Demonstrations: 0, 1, 5 or N (one per class).")
    ] = "1",
    seeds: Annotated[str, typer.Option(metavar="S,...", help="Demonstration seeds.")] = "0",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for all that is written.")
    ] = Path("dcs-runs"),
    store: Store = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many texts of each split.")
    ] = None,
    engine: Engine = None,
    label_rule: LabelRuleName = None,
    dtype: Dtype = None,
    device: Device = None,
    tensor_parallel: TensorParallel = None,
    memory: Memory = None,
    base_url: BaseURL = None,
    api: ApiName = None,
    top_logprobs: TopLogprobs = None,
    missing: Missing = None,
    concurrency: Concurrency = None,
    tokenizer: TokenizerName = None,
    price: Price = None,
    yes: Yes = False,
) -> None:
    """Write the class probabilities of a model: an optimization and a test table per prompt.

    Every prompt is scored once: what a stopped run has done is found again, and tables that are
    there are not made again. The API key of a server is read from OPENAI_API_KEY.
    """
    from dcs.errors import ConfigError
    from dcs.prompting import get_task, parse_shots
    from workflows.cli._console import console
    from workflows.cli._scoring import TablePair
    from workflows.config import checked_scoring

    scoring = checked_scoring(
        engine=engine,
        label_rule=label_rule,
        dtype=dtype,
        device=device,
        tensor_parallel=tensor_parallel,
        memory=memory,
        base_url=base_url,
        api=api,
        top_logprobs=top_logprobs,
        missing=missing,
        concurrency=concurrency,
        tokenizer=tokenizer,
        price=price,
        store=store,
    )
    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {seeds!r}: write whole numbers, e.g. 0,1,2") from None
    pairs = [
        TablePair.plan(
            output,
            get_task(name, data),
            model=model,
            identity=scoring.identity(model),
            shots=parse_shots(count),
            seed=seed,
            limit=limit,
        )
        for name in task
        for count in shots.split(",")
        for seed in numbers
    ]
    rest = [pair for pair in pairs if not pair.is_done()]
    clock = time.perf_counter()
    scored = 0
    if rest:
        scored = _generate(rest, model, scoring, output, yes)
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


def _generate(
    pairs: list[TablePair], model: str, scoring: ScoringSettings, output: Path, yes: bool
) -> int:
    from dcs.generation import count_queries
    from dcs.scorers import StoredScorer
    from dcs.store import ShardStore
    from workflows.cli._console import console, trial_bar
    from workflows.cli._scoring import announce

    shards = ShardStore(scoring.store or output / "shards")
    with console.status(f"loading {model}"):
        inner = scoring.load(model)
    prompts = [(pair.task, pair.shots, pair.seed, pair.limit) for pair in pairs]
    announce(inner, prompts, price=scoring.price, yes=yes)
    scorer = StoredScorer(inner, shards)
    total = sum(
        count_queries(task, shots=shots, seed=seed, limit=limit)
        for task, shots, seed, limit in prompts
    )
    try:
        with trial_bar("scoring prompts", total) as bar:
            for pair in pairs:
                pair.generate(scorer, lambda count: bar.advance(bar.task_ids[0], count))
    finally:
        scorer.close()
    for line in scorer.report():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return scorer.scored
