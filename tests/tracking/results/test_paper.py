"""The paper's numbers as data, and how its models and tasks are recognised."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tracking.results import paper


def test_printed_averages_are_the_means_of_the_printed_figures() -> None:
    frame = paper.paper_frame("paper_results").astype({"accuracy": float, "cobias": float})
    assert len(frame) == 5 * 4 * 10
    for _, rows in frame.groupby(["model", "shots", "method"]):
        values = rows.set_index("task")[["accuracy", "cobias"]]
        gap = (values.loc[list(paper.TASKS)].mean() - values.loc[paper.AVERAGE]).abs()
        assert gap.max() <= 0.1001, rows.iloc[0].to_dict()


def test_the_full_objective_of_the_ablation_is_the_main_result() -> None:
    ablation = paper.paper_frame("paper_ablation").query("objective == 'full'")
    main = paper.paper_frame("paper_results").query("method == 'dcs'")
    both = ablation.merge(main, on=["model", "shots", "task"], suffixes=("", "_main"))
    assert len(both) == len(ablation) == 21
    for measure in ("accuracy", "cobias"):
        assert (both[measure] == both[f"{measure}_main"]).all()


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
