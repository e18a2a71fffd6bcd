"""Texts of the ``reviews`` task: short customer reviews with one of five ordered grades.

The grade is latent; each remark of a review is drawn from a grade near it, so that neighbouring
grades overlap and mixed reviews are common.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dcs.prompting._texts import chance, fill, finish, make_split, pick
from dcs.prompting.tasks import Example, Split

__all__ = ["CLASSES", "REMARKS", "WEIGHTS", "examples", "write_review"]

CLASSES = ("Terrible", "Bad", "Okay", "Good", "Great")
WEIGHTS = (0.13, 0.16, 0.22, 0.27, 0.22)
_SIZES: dict[Split, int] = {"optimization": 2200, "test": 1000}

_SPREAD = 0.62  # how far a remark strays from the grade of its review, in grades
_IRONY = 0.04  # reviews with a remark from the opposite end

REMARKS: tuple[tuple[str, ...], ...] = (
    (
        "the {part} fell apart on the first day",
        "the {part} was an insult",
        "I want every cent of my money back",
        "the {part} was the worst I have ever seen",
        "it went straight into the bin",
        "nobody should have to pay for this",
        "the {part} made me ill",
        "I have never been so angry about a {item}",
        "the staff laughed when I complained about the {part}",
        "an utter waste of time",
        "the {part} smelled of smoke and mould",
    ),
    (
        "the {part} felt cheap and flimsy",
        "the {part} did not last a month",
        "I expected more from the {part}",
        "the {part} was rather disappointing",
        "it took far too long to get an answer",
        "I would not choose this {item} again",
        "the {part} looked better in the pictures",
        "the {part} was noisy and a little dirty",
        "too expensive for what you get",
        "it only works half of the time",
        "I regret that I did not read the reviews",
    ),
    (
        "the {part} was neither here nor there",
        "the {part} does its job and nothing more",
        "about what you would expect for the price",
        "the {part} could be better and could be worse",
        "I have no strong feelings about the {part}",
        "it is a perfectly average {item}",
        "some days I like the {part}, some days I do not",
        "the {part} was fine for one evening",
        "it will do until I find something else",
        "an ordinary {item} with an ordinary {part}",
        "the {part} was acceptable, if plain",
    ),
    (
        "the {part} was better than I expected",
        "I am quite happy with the {part}",
        "the {part} is solid and easy to use",
        "the staff were friendly and the {part} was clean",
        "I would probably buy this {item} again",
        "a pleasant surprise for the price",
        "the {part} works well after a short while",
        "my family liked the {part}",
        "a nice {item} with only small flaws",
        "the {part} was tasteful and comfortable",
        "it arrived quickly and looks neat",
    ),
    (
        "the {part} is simply perfect",
        "I have already told all my friends about it",
        "the {part} was outstanding in every way",
        "the best {item} I have had in years",
        "I could not stop smiling about the {part}",
        "worth every cent and more",
        "the {part} blew me away",
        "I will come back again and again",
        "an absolute joy from start to finish",
        "the {part} is a masterpiece",
        "ten out of ten for the {part}",
    ),
)
# Remarks that say little, or that fit any grade with a change of tone.
_REMARKS_ANY = (
    "I bought it for my {person}",
    "we were there on a rainy day",
    "my {person} had a different opinion",
    "I read about it in a magazine",
    "it was my second {item} this year",
    "the colour is not the one in the picture",
    "you get what you pay for",
    "I have seen better and I have seen worse",
    "not what I had in mind",
    "well, what can I say about the {part}",
    "I cannot believe the price",
    "it was quite an experience",
)
_OPENINGS = (
    "honestly,", "to be fair,", "after two weeks with this {item},", "my {person} says that",
    "what a {item}:", "about this {item}:", "all in all,", "so,", "I must say that",
    "as a gift for my {person},", "for a {item} of this price,", "on our last trip",
)  # fmt: skip
_JOINTS = (" and", " and", ", but", ", although", "; also,", "; then again,", "; even so,")
_ITEMS = ("hotel", "kettle", "novel", "jacket", "film", "restaurant", "headset", "tour", "game")
_SLOTS = {
    "part": ("service", "design", "sound", "food", "finish", "room", "story", "quality", "ending"),
    "person": ("sister", "father", "neighbour", "partner", "daughter", "boss", "friend"),
}


def write_review(
    rng: np.random.Generator, label: int, *, bank: Sequence[Sequence[str]] = REMARKS
) -> str:
    """Write one review of grade `label` (0 is the worst).

    `bank` holds the remarks to choose from, a sequence for each grade.
    """
    remarks = [_remark(rng, label, bank), _remark(rng, label, bank)]
    if chance(rng, 0.45):
        remarks[1] = pick(rng, _REMARKS_ANY)
    if chance(rng, _IRONY):
        remarks[0] = pick(rng, bank[len(CLASSES) - 1 - label])
    if chance(rng, 0.5):
        remarks.reverse()
    if remarks[0] == remarks[1]:
        remarks[1] = pick(rng, _REMARKS_ANY)
    text = f"{pick(rng, _OPENINGS)} {remarks[0]}{pick(rng, _JOINTS)} {remarks[1]}."
    if chance(rng, 0.35):
        text += f" {_remark(rng, label, bank)}."
    # One review is about one thing, whatever its parts.
    text = text.replace("{item}", pick(rng, _ITEMS))
    return finish(fill(rng, text, _SLOTS))


def _remark(rng: np.random.Generator, label: int, bank: Sequence[Sequence[str]]) -> str:
    # A sum of three uniforms is near enough to a bell curve, and needs rng.random() alone.
    bell = 2.0 * (rng.random() + rng.random() + rng.random() - 1.5)
    grade = round(label + _SPREAD * bell)
    return pick(rng, bank[min(max(grade, 0), len(CLASSES) - 1)])


def examples(split: Split) -> tuple[Example, ...]:
    """Return the reviews of a split."""
    return make_split("reviews", split, sizes=_SIZES, weights=WEIGHTS, write=write_review)
