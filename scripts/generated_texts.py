"""Generate the texts of `helpdesk` and `reviews` from phrases, with fixed seeds.

python scripts/generated_texts.py
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from dcs.errors import ConfigError
from dcs.io import read_yaml
from dcs.prompting.tasks import SPLITS, Split
from dcs.seeds import derive_generator

_PHRASES = Path(__file__).parent / "phrases"
_TASKS = Path(__file__).parents[1] / "dcs" / "assets" / "tasks"

# Changing it changes every generated text, and with them every result.
_TEXT_SEED = 20240607

_SIZES: dict[Split, int] = {"optimization": 2200, "test": 1000}

_SLOT = re.compile(r"\{(\w+)\}")


class SharedPhrases(BaseModel):
    """Phrases that two classes share."""

    classes: tuple[int, int]
    phrases: tuple[str, ...]


class Phrases(BaseModel):
    """Phrases for the texts of a generated task.

    Attributes
    ----------
    weights : tuple of float
        Class frequencies.
    by_class : tuple of tuples of str
        Phrases that identify each class.
    shared, neutral : tuple
        Phrases of two classes, and of no class.
    openings, joints, closings : tuple of str
        Text before, between and after two phrases.
    things : tuple of str
        Possible subjects of a text.
    slots : dict
        Words for each ``{name}`` in the phrases.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: tuple[float, ...]
    by_class: tuple[tuple[str, ...], ...]
    shared: tuple[SharedPhrases, ...] = ()
    neutral: tuple[str, ...]
    openings: tuple[str, ...]
    joints: tuple[str, ...]
    closings: tuple[str, ...] = ()
    things: tuple[str, ...] = ()
    slots: dict[str, tuple[str, ...]]


def pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    """Draw one of `options`, each equally likely."""
    # Use only rng.random(): its stream is the same in every NumPy release, which is not
    # guaranteed for choice() and shuffle().
    return options[int(rng.random() * len(options))]


def chance(rng: np.random.Generator, probability: float) -> bool:
    """Return True with the given probability."""
    return bool(rng.random() < probability)


def draw_index(rng: np.random.Generator, weights: Sequence[float]) -> int:
    """Draw an index with probability proportional to its weight."""
    edges = np.cumsum(weights)
    index = int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))
    return min(index, len(edges) - 1)


def finish(text: str) -> str:
    """Capitalise the sentences of a text."""
    return re.sub(
        r"(^|[.!?] )([a-z])", lambda match: match.group(1) + match.group(2).upper(), text
    )


def _fill(rng: np.random.Generator, text: str, phrases: Phrases) -> str:
    return finish(_SLOT.sub(lambda match: pick(rng, phrases.slots[match.group(1)]), text))


def write_ticket(rng: np.random.Generator, label: int, phrases: Phrases) -> str:
    """Return a support ticket of class `label`."""
    # Some tickets are labelled with another team than they describe.
    topic = int(rng.random() * len(phrases.by_class)) if chance(rng, 0.04) else label
    clauses = [_complaint(rng, topic, phrases), _second_clause(rng, topic, phrases)]
    if chance(rng, 0.3):
        clauses.reverse()
    if clauses[0] == clauses[1]:
        clauses[1] = pick(rng, phrases.neutral)
    text = f"{pick(rng, phrases.openings)} {clauses[0]}{pick(rng, phrases.joints)} {clauses[1]}."
    if chance(rng, 0.6):
        text += f" {pick(rng, phrases.closings)}"
    return _fill(rng, text, phrases)


def _complaint(rng: np.random.Generator, topic: int, phrases: Phrases) -> str:
    kind = draw_index(rng, (0.64, 0.30, 1.0 - 0.64 - 0.30))
    if kind == 0:
        return pick(rng, phrases.by_class[topic])
    if kind == 1:
        return pick(rng, [p for s in phrases.shared if topic in s.classes for p in s.phrases])
    return pick(rng, phrases.neutral)


def _second_clause(rng: np.random.Generator, topic: int, phrases: Phrases) -> str:
    kind = draw_index(rng, (0.24, 0.26, 1.0 - 0.24 - 0.26))
    if kind == 0:
        return pick(rng, phrases.by_class[int(rng.random() * len(phrases.by_class))])
    if kind == 1:
        return pick(rng, phrases.by_class[topic])
    return pick(rng, phrases.neutral)


def write_review(rng: np.random.Generator, label: int, phrases: Phrases) -> str:
    """Return a customer review of grade `label` (0 is the worst)."""
    remarks = [_remark(rng, label, phrases), _remark(rng, label, phrases)]
    if chance(rng, 0.45):
        remarks[1] = pick(rng, phrases.neutral)
    if chance(rng, 0.04):
        # Irony: a remark of the opposite grade.
        remarks[0] = pick(rng, phrases.by_class[len(phrases.by_class) - 1 - label])
    if chance(rng, 0.5):
        remarks.reverse()
    if remarks[0] == remarks[1]:
        remarks[1] = pick(rng, phrases.neutral)
    text = f"{pick(rng, phrases.openings)} {remarks[0]}{pick(rng, phrases.joints)} {remarks[1]}."
    if chance(rng, 0.35):
        text += f" {_remark(rng, label, phrases)}."
    # All parts of a review have the same subject.
    text = text.replace("{item}", pick(rng, phrases.things))
    return _fill(rng, text, phrases)


def _remark(rng: np.random.Generator, label: int, phrases: Phrases) -> str:
    # A sum of three uniforms approximates a normal distribution with rng.random() only.
    bell = 2.0 * (rng.random() + rng.random() + rng.random() - 1.5)
    grade = round(label + 0.62 * bell)
    return pick(rng, phrases.by_class[min(max(grade, 0), len(phrases.by_class) - 1)])


_WRITERS = {"helpdesk": write_ticket, "reviews": write_review}


@lru_cache(maxsize=4)
def load_phrases(name: str) -> Phrases:
    """Return the phrases of a generated task."""
    return Phrases.model_validate(read_yaml(_PHRASES / f"{name}.yaml", error=ConfigError))


def write_texts(name: str) -> None:
    """Write distinct texts of 12 to 25 words; no text is in both splits."""
    phrases, write, taken = load_phrases(name), _WRITERS[name], set[str]()
    for split in SPLITS:
        rng = derive_generator(_TEXT_SEED, name, split)
        rows: list[tuple[str, int, str]] = []
        while len(rows) < _SIZES[split]:
            label = draw_index(rng, phrases.weights)
            text = write(rng, label, phrases)
            if text not in taken and 12 <= len(text.split()) <= 25:
                taken.add(text)
                rows.append((f"{len(rows):04d}", label, text))
        path = _TASKS / name / f"{split}.csv"
        path.parent.mkdir(exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerows([("id", "label", "text"), *rows])


if __name__ == "__main__":
    for task in _WRITERS:
        write_texts(task)
