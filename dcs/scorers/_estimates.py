"""What scoring over HTTP will take, and how the prompt tokens were counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from dcs.scorers._http import Server
from dcs.scorers.loading import load_tokenizer

__all__ = ["CostEstimate", "estimate_cost"]

_CHARACTERS_PER_TOKEN = 4.0
_SAMPLE = 24  # prompts that are counted; the rest go by their length


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What scoring will take.

    Attributes
    ----------
    requests : int
        Requests to be sent, retries aside.
    tokens : int
        Prompt tokens in all of them.
    basis : str
        How they were counted.
    """

    requests: int
    tokens: int
    basis: str


def estimate_cost(
    prompts: Sequence[str],
    *,
    server: Server,
    model: str,
    tokenizer: str | None,
    requests_per_prompt: int,
    run: Callable[[Coroutine[Any, Any, Any]], Any],
) -> CostEstimate:
    """Count requests and prompt tokens.

    Parameters
    ----------
    prompts : sequence of str
        What will be sent.
    server, model : Server, str
        Who is asked to count, if no tokenizer is named.
    tokenizer : str or None
        The model whose tokenizer counts.
    requests_per_prompt : int
        How often each prompt is sent.
    run : callable
        Runs a coroutine to its end.

    Raises
    ------
    ScoringError
        If the tokenizer cannot be loaded.
    """
    step = max(1, len(prompts) // _SAMPLE)
    sample = list(prompts[::step][:_SAMPLE])
    if tokenizer is not None:
        loaded = load_tokenizer(tokenizer)
        counted = [len(loaded(prompt)["input_ids"]) for prompt in sample]
        basis = f"counted by the tokenizer of {tokenizer}"
    else:
        counted = run(_ask_server(server, model, sample)) if sample else []
        basis = "counted by the server's tokenizer"
    per_character = 1.0 / _CHARACTERS_PER_TOKEN
    if counted:
        per_character = sum(counted) / sum(map(len, sample))
        if len(sample) < len(prompts):
            basis += f" on {len(sample)} of the prompts"
    else:
        basis = "at four characters a token, for want of a tokenizer"
    tokens = math.ceil(sum(map(len, prompts)) * per_character - 1e-6)
    return CostEstimate(len(prompts) * requests_per_prompt, tokens * requests_per_prompt, basis)


async def _ask_server(server: Server, model: str, sample: Sequence[str]) -> list[int]:
    counted = []
    async with server.session() as session:
        for prompt in sample:
            answer = await session.try_once(
                f"{server.root}/tokenize", {"model": model, "prompt": prompt}
            )
            count = answer.get("count") if isinstance(answer, dict) else None
            if not isinstance(count, int) or count < 1:
                return []
            counted.append(count)
    return counted
