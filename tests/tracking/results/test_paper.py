"""The paper's numbers as data, and how its models and tasks are recognised."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dcs_tracking.results import paper


@pytest.mark.parametrize(
    ("recognised", "name", "known"),
    [
        (paper.paper_model, "meta-llama/Llama-2-13b-hf", "llama-2-13b"),
        (paper.paper_model, "/models/Llama-2-13b-hf/", "llama-2-13b"),
        (paper.paper_model, "Llama-2-70B", "llama-2-70b"),
        (paper.paper_model, "google/gemma-2-2b", "gemma-2-2b"),
        (paper.paper_model, "google/gemma-2-2b-it", None),
        (paper.paper_model, "Llama-2-13b-chat-hf", None),
        (paper.paper_model, None, None),
        (paper.paper_task, "SST-5", "sst5"),
        (paper.paper_task, "ag_news", "agnews"),
        (paper.paper_task, "PMQA", "pubmedqa"),
        (paper.paper_task, "trec@published", "trec"),
        (paper.paper_task, "helpdesk", None),
    ],
)
def test_models_and_tasks_are_recognised(
    recognised: Callable[[object], str | None], name: str | None, known: str | None
) -> None:
    assert recognised(name) == known
