"""The text of a prompt: instruction, demonstrations, query."""

from __future__ import annotations

import hashlib
import json

from dcs.prompting.demonstrations import Demonstrations
from dcs.prompting.tasks import Task

__all__ = ["prompt_hash", "render_prefix", "render_query"]


def render_prefix(task: Task, demonstrations: Demonstrations) -> str:
    r"""Return what all prompts of a table begin with: the instruction and the demonstrations.

    Parameters
    ----------
    task : Task
        The task.
    demonstrations : Demonstrations
        What is shown, in order; may be empty (0-shot).

    Returns
    -------
    str
        ``instruction``, a blank line, then per demonstration
        ``"<input_prefix> text\n<answer_prefix> label\n\n"``.
    """
    blocks = [f"{task.instruction}\n\n"] if task.instruction else []
    blocks += [
        f"{render_query(task, example.text)} {task.label_words[example.label]}\n\n"
        for example in demonstrations.examples
    ]
    return "".join(blocks)


def render_query(task: Task, text: str) -> str:
    """Return the last part of a prompt: the text, and the answer prefix the model continues.

    It ends without a space, since most tokenizers join the space to the label word.
    """
    head = f"{task.input_prefix} " if task.input_prefix else ""
    return f"{head}{text.strip()}\n{task.answer_prefix}".rstrip(" ")


def prompt_hash(task: Task, demonstrations: Demonstrations) -> str:
    """Return a hash of everything in the prompts but the query texts.

    Two tables with the same hash asked the same question: same instruction, demonstrations,
    template, classes and label words.
    """
    content: dict[str, object] = {
        "prefix": render_prefix(task, demonstrations),
        "query": render_query(task, "{text}"),
        "classes": task.classes,
        "label_words": task.label_words,
    }
    if task.template:
        content["template"] = task.template
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()
