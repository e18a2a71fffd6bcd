"""Texts of the ``helpdesk`` task: support tickets to be sent to one of six teams.

A ticket is made of an opening, a complaint, and often a second clause. The complaint is plain,
or one that two teams could both claim, or missing; the second clause may belong to another team.
So no reader can be right every time, as with real tickets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dcs.prompting._texts import chance, draw_index, fill, finish, make_split, pick
from dcs.prompting.tasks import Example, Split

__all__ = ["CLASSES", "COMPLAINTS", "WEIGHTS", "examples", "write_ticket"]

CLASSES = ("Access", "Billing", "Hardware", "Network", "Shipping", "Software")
WEIGHTS = (0.21, 0.16, 0.19, 0.15, 0.09, 0.20)
_SIZES: dict[Split, int] = {"optimization": 2200, "test": 1000}

_MISROUTED = 0.04  # tickets whose recorded team is not the one they describe
_PLAIN, _SHARED = 0.64, 0.30  # the rest carries no complaint that points to a team
_SECOND_OTHER, _SECOND_SAME = 0.24, 0.26

COMPLAINTS: tuple[tuple[str, ...], ...] = (
    (
        "my password was rejected again",
        "I am locked out of my {app} account",
        "the reset link for my login has expired",
        "the verification code never reaches my phone",
        "I need permission to open the {team} folder",
        "my badge no longer opens the door to the {team} room",
        "single sign-on says that my user is disabled",
        "I forgot the pin for the {app}",
        "the new colleague in {team} still has no login",
        "the system asks for an authenticator that I never set up",
        "my account was suspended without a reason",
        "I cannot sign in to the {app} with my usual name",
    ),
    (
        "I was charged twice for the {app} plan",
        "the invoice shows the wrong amount",
        "my refund has still not been paid",
        "the card on file was declined although it is valid",
        "we need a receipt for the last payment",
        "the discount was not applied to our bill",
        "the tax number on the invoice is wrong",
        "the yearly fee went up without any notice",
        "{team} was billed for seats that we do not use",
        "please cancel the subscription and return the money",
        "the quote and the final price do not match",
        "the payment is still marked as pending",
    ),
    (
        "the {device} makes a loud noise",
        "the {device} does not switch on any more",
        "the battery of the {device} drains in an hour",
        "the screen of the {device} has a black stripe",
        "the {device} gets very hot under the desk",
        "two keys of the keyboard are stuck",
        "the cable of the {device} is torn",
        "the paper tray is jammed and a red light blinks",
        "the fan of the {device} rattles all day",
        "the camera lens is scratched",
        "the power button of the {device} is loose",
        "the hinge of the laptop broke",
    ),
    (
        "the wifi in the {place} drops every few minutes",
        "the vpn tunnel closes after a minute",
        "there is no internet in the {place}",
        "the signal is weak in the {place}",
        "the router in the {place} has to be restarted daily",
        "calls break up because packets are lost",
        "downloads crawl on the guest network",
        "the firewall blocks the {app} server",
        "the shared drive cannot be reached from the {place}",
        "the ethernet socket in the {place} is dead",
        "remote sessions lag badly in the afternoon",
        "the proxy returns a timeout for every address",
    ),
    (
        "the parcel with the {device} has not arrived",
        "the tracking number shows no movement",
        "the courier left the box at the wrong {place}",
        "the {device} was sent to our old address",
        "the delivery date has moved for the second time",
        "half of the items were missing from the package",
        "we need a return label for the {device}",
        "customs is holding our shipment",
        "the driver could not find the {place}",
        "the order was dispatched but nobody signed for it",
    ),
    (
        "the {app} crashes when I open a file",
        "the {app} update fails at ninety percent",
        "the export from the {app} is empty",
        "the new version of the {app} lost my settings",
        "a macro in the {app} stopped working",
        "the installer of the {app} shows an error code",
        "the {app} saves everything in the wrong format",
        "the plugin for the {app} is not compatible",
        "formulas in the {app} give strange values",
        "the {app} window stays blank after the start",
        "the search in the {app} finds nothing",
        "the license key of the {app} is not accepted",
    ),
)

# Complaints that two teams could both claim.
_SHARED_COMPLAINTS: tuple[tuple[tuple[int, int], tuple[str, ...]], ...] = (
    ((0, 3), ("I cannot get in from home", "the {app} refuses my connection from the {place}")),
    ((0, 5), ("the {app} throws me out after a minute", "the {app} says not allowed")),
    ((0, 1), ("my plan shows as inactive", "the customer page does not open for {team}")),
    ((1, 4), ("the order total looks wrong", "the order was cancelled without a word")),
    ((1, 5), ("the {app} trial ended too early", "the {app} license was not renewed")),
    ((2, 5), ("the {device} freezes all the time", "the {device} is not recognised")),
    ((2, 3), ("the {device} loses its connection", "the phone in the {place} is silent")),
    ((2, 4), ("the new {device} came damaged", "we are waiting for a replacement {device}")),
    ((3, 5), ("the {app} is extremely slow", "the {app} does not sync any more")),
)

_OPENINGS = (
    "hello,", "hi team,", "good morning,", "since this morning", "after the weekend",
    "for the third time this week", "once again", "sorry to bother you, but", "as of today",
    "since the move to the {place}", "following the last maintenance", "just so you know,",
    "according to {team},", "I work in {team} and", "for some reason", "right before a deadline",
)  # fmt: skip
_NEUTRAL = (
    "I have a meeting with {team} at noon",
    "nobody in {team} knows what to do",
    "I already restarted everything twice",
    "it worked fine last week",
    "a colleague in the {place} has the same trouble",
    "the help page did not answer my question",
    "I could not find anything about it in the guide",
    "this is holding up the work of {team}",
    "we need this before the end of the month",
    "my manager asked me to report it",
    "I am not sure who looks after this",
    "the chat told me to open a ticket",
)
_JOINTS = (" and", ", and", "; also,", " while", ", so", "; besides,", " and now")
_CLOSINGS = (
    "please advise.", "can someone look at it today?", "thank you.", "what should I do?",
    "it is urgent.", "no rush.", "please call me back.", "any idea?", "this keeps happening.",
    "thanks for your help in advance.",
)  # fmt: skip
_SLOTS = {
    "app": ("mail", "calendar", "browser", "editor", "spreadsheet", "payroll", "portal", "chat"),
    "device": ("laptop", "printer", "monitor", "headset", "scanner", "docking station", "phone"),
    "place": ("office", "warehouse", "lobby", "meeting room", "second floor", "branch", "lab"),
    "team": ("sales", "finance", "marketing", "support", "legal", "research", "design"),
}


def write_ticket(
    rng: np.random.Generator,
    label: int,
    *,
    complaints: Sequence[Sequence[str]] = COMPLAINTS,
) -> str:
    """Write one ticket that is recorded under class `label`.

    `complaints` are the plain complaints to choose from, a sequence for each class.
    """
    topic = int(rng.random() * len(CLASSES)) if chance(rng, _MISROUTED) else label
    clauses = [_complaint(rng, topic, complaints), _second(rng, topic, complaints)]
    if chance(rng, 0.3):
        clauses.reverse()
    if clauses[0] == clauses[1]:
        clauses[1] = pick(rng, _NEUTRAL)
    text = f"{pick(rng, _OPENINGS)} {clauses[0]}{pick(rng, _JOINTS)} {clauses[1]}."
    if chance(rng, 0.6):
        text += f" {pick(rng, _CLOSINGS)}"
    return finish(fill(rng, text, _SLOTS))


def _complaint(rng: np.random.Generator, topic: int, complaints: Sequence[Sequence[str]]) -> str:
    kind = draw_index(rng, (_PLAIN, _SHARED, 1.0 - _PLAIN - _SHARED))
    if kind == 0:
        return pick(rng, complaints[topic])
    if kind == 1:
        return pick(rng, [p for pair, ps in _SHARED_COMPLAINTS if topic in pair for p in ps])
    return pick(rng, _NEUTRAL)


def _second(rng: np.random.Generator, topic: int, complaints: Sequence[Sequence[str]]) -> str:
    kind = draw_index(rng, (_SECOND_OTHER, _SECOND_SAME, 1.0 - _SECOND_OTHER - _SECOND_SAME))
    if kind == 0:
        return pick(rng, complaints[int(rng.random() * len(CLASSES))])
    if kind == 1:
        return pick(rng, complaints[topic])
    return pick(rng, _NEUTRAL)


def examples(split: Split) -> tuple[Example, ...]:
    """Return the tickets of a split."""
    return make_split("helpdesk", split, sizes=_SIZES, weights=WEIGHTS, write=write_ticket)
