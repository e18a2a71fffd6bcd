"""Measure the demonstration model and write its model card.

python scripts/tiny_lm_card.py dcs/assets/tiny_lm
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from dcs.evaluation.metrics import ClassificationMetrics
from dcs.prompting.files import get_task
from dcs.prompting.tasks import Shots, render_prefix, render_query, select_demonstrations
from dcs.scoring import load_scorer

SHOTS: tuple[Shots, ...] = (0, 1, 5, "N")
SEEDS = (0, 1, 2)
TASKS = ("helpdesk", "reviews")

CARD = """\
---
language: en
license: apache-2.0
tags: [demonstration]
---
# tiny_lm: a demonstration model

A causal language model of {parameters:,} parameters (Llama architecture, {layers} layers,
{heads} heads of {head_dim}, float32; byte-level BPE tokenizer of {vocabulary:,} tokens). It
exists so that this project can be tried, shown and tested with a real model that needs no
download.

**What it is for.** Reading few-shot classification prompts of the two generated tasks `helpdesk`
and `reviews`. It answers in context: the demonstrations in the prompt change its answers.

**What it is not.** It is not a language model for any real use. It has seen a few hundred English
words, knows nothing of the world, and writes nothing worth reading. Figures measured with it say
how the software works, not how large models behave. Any label word can be scored with it, but on
texts and labels other than those below its answers mean next to nothing.

## How it was made
From scratch, with all seeds derived from {seed}:

    python scripts/train_tiny_lm.py --output dcs/assets/tiny_lm --seed {seed} --steps {steps}

{steps:,} steps of 24 episodes of 384 tokens, {seconds:,} s on one core of a two-core machine that
had other work to do. An episode is a prompt with many answered texts. Most are in the style of
the two tasks, some of these with permuted or replaced label words; the others are about sixteen
further topics. No text of the tasks' own splits is in them: those are set aside, and come from
other seeds. Of the complaints and remarks that the tasks are made of, it has seen one half.

Label frequencies are skewed in training (`software` and `great` are far too common), more so
within an episode, and labels come in runs, as in what large models read. With that, with texts
that even a perfect reader could not always tell, and with its size, the model is weak and
biased, and swayed by which labels the demonstrations have. No correction method had a part in it.

Prompts of more than 384 tokens, which are about ten demonstrations, are longer than any it has
seen: it takes them, and gets worse.

## Measured
On the {n_test:,} test texts of each task, uncorrected; mean of demonstration seeds
{seeds}, and the range in brackets. Chance is {chance}.

| task | shots | accuracy | COBias |
| --- | --- | --- | --- |
{rows}

Class accuracies, in the order of the classes, mean of the same seeds:

| task | shots | class accuracies |
| --- | --- | --- |
{class_rows}
"""


def write_card(folder: Path) -> None:
    """Measure the model in `folder` and write README.md there."""
    record = json.loads((folder / "training.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    scorer = load_scorer(folder, device="cpu")
    rows, class_rows, n_test = [], [], 0
    for name in TASKS:
        task = get_task(name)
        examples = task.examples("test")
        labels = np.array([example.label for example in examples])
        n_test = len(examples)
        for shots in SHOTS:
            found = []
            for seed in SEEDS:
                prefix = render_prefix(task, select_demonstrations(task, shots, seed=seed))
                queries = [render_query(task, example.text) for example in examples]
                probs = scorer.score(prefix, queries, task.label_words)
                found.append(
                    ClassificationMetrics.from_predictions(
                        labels, probs.argmax(axis=1), len(task.classes)
                    )
                )
            accuracy = _percent([metrics.accuracy for metrics in found])
            cobias = _percent([metrics.cobias for metrics in found])
            rows.append(f"| {name} | {shots} | {accuracy} | {cobias} |")
            means = np.mean([metrics.class_accuracies for metrics in found], axis=0)
            pairs = zip(task.classes, means, strict=True)
            cells = ", ".join(f"{name_} {100 * value:.0f}" for name_, value in pairs)
            class_rows.append(f"| {name} | {shots} | {cells} |")
    card = CARD.format(
        **record,
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        head_dim=config["head_dim"],
        vocabulary=config["vocab_size"],
        n_test=n_test,
        seeds=", ".join(map(str, SEEDS)),
        chance=", ".join(f"{100 / get_task(t).n_classes:.0f} % on {t}" for t in TASKS),
        rows="\n".join(rows),
        class_rows="\n".join(class_rows),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def _percent(values: list[float]) -> str:
    low, mean, high = (100 * f(values) for f in (np.min, np.mean, np.max))
    return f"{mean:.1f} % ({low:.1f}-{high:.1f})"


if __name__ == "__main__":
    write_card(Path(sys.argv[1]))
