"""The text of prompts, and the same prompts as chat messages."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

from dcs.prompting.tasks import Demonstrations, Task

AnswerPrefix = Literal["user", "assistant", "none"]
"""In a chat: whose turn holds the answer prefix, the last line of a query. ``user`` leaves it in
the query, ``assistant`` begins the answer with it, ``none`` leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPrefix:
    r"""The common beginning of prompts: an instruction and demonstrations.

    As a string, it is the text to which a query is appended: ``instruction``, a blank line, then
    per demonstration ``"query answer<separator>"``.

    Parameters
    ----------
    instruction : str
        Text at the beginning; may be empty.
    turns : tuple of (str, str)
        Query and label word of each demonstration, in order.
    separator : str
        Text after each demonstration.
    """

    instruction: str = ""
    turns: tuple[tuple[str, str], ...] = ()
    separator: str = "\n\n"

    def __str__(self) -> str:
        head = f"{self.instruction}\n\n" if self.instruction else ""
        return head + "".join(f"{query} {word}{self.separator}" for query, word in self.turns)


def chat_messages(
    prefix: str | PromptPrefix,
    query: str,
    *,
    system: bool = True,
    answer_prefix: AnswerPrefix = "user",
) -> list[dict[str, str]]:
    """Return a prompt as chat messages, up to the turn of the assistant.

    Parameters
    ----------
    prefix : str or PromptPrefix
        The instruction becomes the system message, each demonstration one message of the user and
        one of the assistant. A plain text is the beginning of the only message.
    query : str
        The last message.
    system : bool
        Whether there is a system message; if not, the first message begins with the instruction.
    answer_prefix : {"user", "assistant", "none"}
        See :data:`AnswerPrefix`.

    Returns
    -------
    list of dict
        Messages with the keys ``role`` and ``content``.
    """
    if isinstance(prefix, str):
        query, prefix = prefix + query, PromptPrefix()
    last = last_line(query)
    removed = "" if answer_prefix == "user" or not last else f"\n{last}"
    lead = f"{last} " if answer_prefix == "assistant" and last else ""
    messages = []
    for text, word in (*prefix.turns, (query, "")):
        messages.append({"role": "user", "content": text.removesuffix(removed)})
        messages.append({"role": "assistant", "content": lead + word})
    del messages[-1]
    if prefix.instruction and system:
        messages.insert(0, {"role": "system", "content": prefix.instruction})
    elif prefix.instruction:
        messages[0]["content"] = f"{prefix.instruction}\n\n{messages[0]['content']}"
    return messages


def last_line(query: str) -> str:
    """Return the last line of a query, its answer prefix; empty if it is the only one."""
    return query.rpartition("\n")[2] if "\n" in query else ""


def render_prefix(task: Task, demonstrations: Demonstrations) -> PromptPrefix:
    """Return the common prefix of the prompts: the instruction and the demonstrations.

    Parameters
    ----------
    task : Task
        The task.
    demonstrations : Demonstrations
        The demonstrations in order; may be empty (0-shot).
    """
    return PromptPrefix(
        instruction=task.instruction,
        turns=tuple(
            (render_query(task, example.text), task.label_words[example.label])
            for example in demonstrations.examples
        ),
        separator=task.separator,
    )


def render_query(task: Task, text: str) -> str:
    """Return the last part of a prompt: the text, and the answer prefix the model continues.

    Trailing spaces are removed, because most tokenizers merge the space into the label word.
    """
    head = f"{task.input_prefix} " if task.input_prefix else ""
    return f"{head}{text.strip()}\n{task.answer_prefix}".rstrip(" ")


def prompt_hash(task: Task, demonstrations: Demonstrations) -> str:
    """Return a hash of everything in the prompts except the query texts.

    Tables with the same hash have the same instruction, demonstrations, template, classes and
    label words.
    """
    content: dict[str, object] = {
        "prefix": str(render_prefix(task, demonstrations)),
        "query": render_query(task, "{text}"),
        "classes": task.classes,
        "label_words": task.label_words,
    }
    if task.template:
        content["template"] = task.template
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()
