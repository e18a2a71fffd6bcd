"""Training episodes of the demonstration model: prompts with many labelled texts.

Some episodes use the style of the two built-in tasks with their usual label words, some permute
or replace those words, and the rest are about other topics, so that the model has to use the
demonstrations. Only every second complaint and remark of the tasks is used: the others first occur
in the tasks themselves, like a task that a large model was not trained on. Label frequencies are
skewed on purpose, over all episodes and more strongly within each, and labels are repeated, as in
the training texts of large models. The episodes are independent of any correction method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from generated_texts import (
    Phrases,
    chance,
    draw_index,
    finish,
    load_phrases,
    pick,
    write_review,
    write_ticket,
)

from dcs.prompting.files import PACKAGED, get_task
from dcs.prompting.tasks import SPLITS, Task

Mode = Literal["usual", "permuted", "replaced"]

# Class frequencies in training, in the order of the task's classes. They differ from those of the
# tasks' own splits: that difference is the source of the model's bias.
TRAINING_WEIGHTS = {
    "helpdesk": (0.24, 0.09, 0.13, 0.16, 0.05, 0.33),
    "reviews": (0.15, 0.07, 0.13, 0.25, 0.40),
}
CONCENTRATION = 3.0  # of the Dirichlet distribution of the label frequencies of an episode
REPEATED = 0.25  # share of labels that repeat the previous one: neighbouring texts are similar


def _every_second(name: str) -> Phrases:
    phrases = load_phrases(name)
    return phrases.model_copy(update={"by_class": tuple(own[::2] for own in phrases.by_class)})


_WRITERS: dict[str, Callable[[np.random.Generator, int], str]] = {
    "helpdesk": partial(write_ticket, phrases=_every_second("helpdesk")),
    "reviews": partial(write_review, phrases=_every_second("reviews")),
}

_TOPICS = {
    "weather": "rain snow storm cloud wind fog sunshine thunder frost forecast umbrella heat",
    "sports": "goal match referee stadium coach team tennis medal race runner league score",
    "music": "guitar song piano concert choir melody drum album singer rhythm violin stage",
    "cooking": "soup oven recipe onion butter flour pan sauce spice kitchen bread dinner",
    "travel": "airport hotel passport suitcase flight beach ticket border map tourist train visa",
    "health": "doctor fever medicine nurse clinic surgery vaccine pain patient therapy diet heart",
    "school": "teacher exam pupil lesson homework classroom grade essay library chalk textbook",
    "law": "judge court lawyer trial jury verdict witness statute appeal crime prison evidence",
    "science": "atom laboratory microscope experiment physics theory molecule telescope energy",
    "business": "profit market merger shares investor bank trade company budget export tax stock",
    "politics": "election minister vote parliament senator treaty campaign party reform debate",
    "nature": "forest river mountain oak meadow lake moss valley flower leaf waterfall cliff",
    "animals": "horse eagle wolf rabbit salmon tiger owl cattle dolphin spider fox sheep",
    "computers": "server keyboard program database software robot chip screen browser data code",
    "history": "empire king castle war knight revolution ruin dynasty monument century throne",
    "family": "mother wedding cousin baby uncle birthday grandmother brother marriage twins home",
}
_SENTENCES = (
    "the {} and the {} were near the {} until the evening",
    "yesterday someone spoke about a {}, a {} and the old {}",
    "nobody had seen such a {} since the {} came to the {}",
    "I think that the {} has more to do with the {} than with the {}",
    "first came the {}, then the {}, and in the end another {}",
    "is it true that the {} of the {} belongs to the {}?",
    "they wrote a long report on the {}, the {} and each {}",
    "without a {} there would be no {} and hardly any {} today",
)
_LABEL_WORDS = (
    "world sports business technology science health politics music travel food yes no true "
    "false maybe positive negative neutral entailment contradiction red blue green yellow black "
    "white alpha beta gamma delta north south east west one two three four five six "
    "description entity abbreviation human location number company school artist athlete "
    "politician transportation building nature village animal plant album film book joy sadness "
    "anger fear love surprise spam ham high low medium left right hot cold old new up down "
    "effect mechanism advice interaction none other question answer person place thing time "
    "apple river stone cloud lamp door table mouse paper silver gold iron"
)
_LABEL_POOL = _LABEL_WORDS.split()
_TEMPLATES = (
    ("Text:", "Label:"),
    ("Input:", "Output:"),
    ("Sentence:", "Class:"),
    ("Question:", "Answer:"),
    ("Article:", "Topic:"),
    ("Text:", "Answer:"),
)
_INSTRUCTIONS = ("Choose the label of each text.", "Name the class of each text.", "")


@dataclass(frozen=True, slots=True)
class Episode:
    """The text of an episode and the character spans of its label words, with their space."""

    text: str
    spans: tuple[tuple[int, int], ...]


def reserved_texts() -> frozenset[str]:
    """Return the texts of the built-in tasks, which episodes must not contain."""
    return frozenset(
        example.text
        for name in PACKAGED
        for split in SPLITS
        for example in get_task(name).examples(split)
    )


def draw_episode(rng: np.random.Generator, reserved: frozenset[str], *, length: int) -> Episode:
    """Draw an episode of `length` labelled texts."""
    if chance(rng, 0.72):
        task = get_task("helpdesk" if chance(rng, 0.5) else "reviews")
        mode: Mode = ("usual", "permuted", "replaced")[draw_index(rng, (0.60, 0.15, 0.25))]
        return _task_episode(rng, reserved, task, mode, length)
    return _topic_episode(rng, length)


def _task_episode(
    rng: np.random.Generator, reserved: frozenset[str], task: Task, mode: Mode, length: int
) -> Episode:
    words: Sequence[str] = task.label_words
    if mode == "permuted":
        words = [words[int(i)] for i in rng.permutation(len(task.classes))]
    elif mode == "replaced":
        words = _distinct(rng, _LABEL_POOL, len(task.classes))
    prior = CONCENTRATION * np.asarray(TRAINING_WEIGHTS[task.name])
    items = []
    for label in _labels(rng, rng.dirichlet(prior), length):
        text = _WRITERS[task.name](rng, label)
        while text in reserved:
            text = _WRITERS[task.name](rng, label)
        items.append((text, words[label]))
    if mode == "replaced" or chance(rng, 0.25):
        return _join(pick(rng, _INSTRUCTIONS), *_TEMPLATES[draw_index(rng, [1] * 6)], items)
    instruction = "" if mode == "permuted" and chance(rng, 0.5) else task.file.instruction
    return _join(instruction, task.file.input_prefix, task.file.answer_prefix, items)


def _topic_episode(rng: np.random.Generator, length: int) -> Episode:
    topics = _distinct(rng, list(_TOPICS), 2 + int(rng.random() * 5))
    words = topics if chance(rng, 0.35) else _distinct(rng, _LABEL_POOL, len(topics))
    items = []
    for label in _labels(rng, rng.dirichlet(np.full(len(topics), 1.5)), length):
        nouns = [
            pick(rng, _TOPICS[topics[label] if chance(rng, 0.8) else pick(rng, topics)].split())
            for _ in range(3)
        ]
        items.append((finish(pick(rng, _SENTENCES).format(*nouns)), words[label]))
    return _join(pick(rng, _INSTRUCTIONS), *_TEMPLATES[draw_index(rng, [1] * 6)], items)


def _labels(rng: np.random.Generator, weights: np.ndarray, length: int) -> list[int]:
    labels = [draw_index(rng, weights)]
    while len(labels) < length:
        labels.append(labels[-1] if chance(rng, REPEATED) else draw_index(rng, weights))
    if chance(rng, 0.2):
        # One of each class first, as in N-shot prompts.
        labels = [int(i) for i in rng.permutation(len(weights))] + labels
    return labels[:length]


def _distinct(rng: np.random.Generator, options: Sequence[str], number: int) -> list[str]:
    return [options[int(i)] for i in rng.permutation(len(options))[:number]]


def _join(
    instruction: str, input_prefix: str, answer_prefix: str, items: Sequence[tuple[str, str]]
) -> Episode:
    text = f"{instruction}\n\n" if instruction else ""
    spans = []
    for body, word in items:
        text += f"{input_prefix} {body}\n{answer_prefix}"
        spans.append((len(text), len(text) + 1 + len(word)))
        text += f" {word}\n\n"
    return Episode(text, tuple(spans))
