"""``dcs generate``: the class probabilities of a model on a task, as tables."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workflows.cli._options import Data

if TYPE_CHECKING:
    from dcs.scorers import Scorer
    from workflows.cli._scoring import TablePair

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
    store: Annotated[
        str | None,
        typer.Option(
            help="Where scored prompts are kept: a folder, or a URL such as s3://bucket/dcs; by "
            "default the folder shards in --output.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many texts of each split.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="transformers, vllm, or openai (any OpenAI-compatible server).")
    ] = "transformers",
    device: Annotated[
        str | None, typer.Option(help="transformers: cpu, cuda:1, ...; by default a GPU.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="transformers, vllm: precision, e.g. bfloat16.")
    ] = None,
    label_rule: Annotated[
        str,
        typer.Option(
            help="Label words of several tokens: mean (as published), first, joint, or auto: "
            "the mean, or joint where first tokens collide."
        ),
    ] = "auto",
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="vllm: GPUs that share the model.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="openai: address of the server, e.g. http://host:8000/v1.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="openai: requests at a time.")
    ] = None,
    top_logprobs: Annotated[
        int | None, typer.Option(min=1, help="openai: next tokens to be shown; 20 by default.")
    ] = None,
    missing: Annotated[
        str | None,
        typer.Option(help="openai: labels missing from the answer: error, bound or zero."),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(min=0.0, help="openai: price of a million prompt tokens, for an estimate."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="openai: do not ask before requests that cost money.")
    ] = False,
) -> None:
    """Write the class probabilities of a model: an optimization and a test table per prompt.

    Every prompt is scored once: what a stopped run has done is found again, and tables that are
    there are not made again. The API key of a server is read from OPENAI_API_KEY.
    """
    from dcs.errors import ConfigError
    from dcs.prompting import get_task, parse_shots
    from workflows.cli._console import console
    from workflows.cli._scoring import TablePair, engine_identity

    options: dict[str, Any] = {
        "dtype": dtype,
        "label_rule": None if label_rule == "auto" else label_rule,
        "tensor_parallel": tensor_parallel,
        "base_url": base_url,
        "top_logprobs": top_logprobs,
        "missing": missing,
    }
    options = {name: value for name, value in options.items() if value is not None}
    identity = engine_identity(model, engine, options | ({"device": device} if device else {}))
    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {seeds!r}: write whole numbers, e.g. 0,1,2") from None
    pairs = [
        TablePair.plan(
            output,
            get_task(name, data),
            model=model,
            identity=identity,
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
        if engine == "openai":
            options |= {} if concurrency is None else {"concurrency": concurrency}
        scored = _generate(
            rest, model, engine, device, options, store or str(output / "shards"), price, yes
        )
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
    pairs: list[TablePair],
    model: str,
    engine: str,
    device: str | None,
    options: dict[str, Any],
    store: str,
    price: float | None,
    yes: bool,
) -> int:
    from dcs.generation import count_queries
    from dcs.scorers import StoredScorer, load_scorer
    from dcs.store import ShardStore
    from workflows.cli._console import console, trial_bar

    shards = ShardStore(store)
    with console.status(f"loading {model}"):
        inner = load_scorer(model, engine=engine, device=device, **options)
    if engine == "openai":
        _announce(inner, pairs, price, yes)
    scorer = StoredScorer(inner, shards)
    total = sum(
        count_queries(pair.task, shots=pair.shots, seed=pair.seed, limit=pair.limit)
        for pair in pairs
    )
    try:
        with trial_bar("scoring prompts", total) as bar:
            for pair in pairs:
                pair.generate(scorer, lambda count: bar.advance(bar.task_ids[0], count))
    finally:
        scorer.close()
    for line in getattr(inner, "report", list)():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return scorer.scored


def _announce(scorer: Scorer, pairs: list[TablePair], price: float | None, yes: bool) -> None:
    """Say what the requests will cost before the first one is sent."""
    from dcs.prompting import SPLITS, render_prefix, render_query, select_demonstrations
    from dcs.scorers.openai_compatible import OpenAIScorer
    from workflows.cli._console import console

    assert isinstance(scorer, OpenAIScorer)  # the engine asked for
    requests = tokens = 0
    for pair in pairs:
        shown = select_demonstrations(pair.task, pair.shots, seed=pair.seed)
        for split in SPLITS:
            texts = pair.task.examples(split)[: pair.limit]
            queries = [render_query(pair.task, e.text) for e in texts]
            estimate = scorer.estimate(
                render_prefix(pair.task, shown), queries, pair.task.label_words
            )
            requests += estimate.requests
            tokens += estimate.tokens
    cost = "" if price is None else f", about {tokens / 1e6 * price:.2f} at {price} a million"
    console.print(
        f"{scorer.model} at {scorer.base_url}: at most {requests} requests, "
        f"about {tokens:,} prompt tokens{cost}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if price and not yes:
        typer.confirm("Send them?", abort=True)
