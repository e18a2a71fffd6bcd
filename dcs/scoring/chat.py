"""Prompts as text and tokens, by the tokenizer of a model and its chat template, if any."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

from dcs.errors import ScoringError, named
from dcs.prompting.tasks import PromptPrefix, chat_messages

#: How a model is prompted: with plain text it continues (``completion``), as in the paper, or with
#: the turns of a conversation (``chat``). ``auto`` is ``chat`` if the model has a chat template.
PromptStyle = Literal["auto", "completion", "chat"]

#: Template options that switch off thinking; templates ignore those that they do not have.
NO_THINKING = {"enable_thinking": False, "thinking": False}

#: An opened thought at the end of a prompt, e.g. ``<think>`` or ``[THINK]``.
_OPEN_THOUGHT = re.compile(r"([<\[])([\w:]*(?:think|thought)\w*)([>\]])\s*$", re.IGNORECASE)

#: Templates with channels (gpt-oss) let the model choose one, and answer in this one.
_FINAL_CHANNEL = "<|channel|>final<|message|>"

#: Templates print the date of today; a prompt must be the same on every day.
_TODAY = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")
_DATE = datetime.date(2024, 7, 26)


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a tokenizer, ending where the answer begins.

    The instruction is a system message if the template accepts one, and otherwise begins the
    first message. Thinking is switched off by an option of the template; a thought that is opened
    nevertheless is closed. A template that prints the date prints 26 July 2024.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        A Transformers tokenizer with a chat template.
    model : str
        Name of the model, for messages.
    """

    tokenizer: Any
    model: str

    @cached_property
    def _template(self) -> str:
        template = self.tokenizer.get_chat_template()
        return _TODAY.sub(lambda call: json.dumps(_DATE.strftime(call[2])), template)

    @property
    def digest(self) -> str:
        """A hash of the template, and of what it renders now."""
        rendered = self._render_roles("system", "user") or self._render_roles("user")
        return hashlib.sha256(f"{self._template}\0{rendered}".encode()).hexdigest()[:16]

    @cached_property
    def _gap(self) -> str:
        """What the template writes between a prompt and its answer: blanks, if anything."""
        prompt = self._render_roles("user", add_generation_prompt=True)
        answered = self._render_roles("user", "assistant")
        gap = re.match(rf"{re.escape(prompt)}(\s*)assistant-turn", answered)
        return gap[1] if gap else ""

    def render(self, prefix: str | PromptPrefix, queries: Sequence[str]) -> tuple[list[str], str]:
        """Return the text of each prompt, and what separates it from the answer, if anything.

        Raises
        ------
        ScoringError
            If the template cannot render the prompt.
        """
        # Some templates render no system message, but an error or nothing.
        system = "system-turn" in self._render_roles("system", "user")
        turns = [chat_messages(prefix, query, system=system) for query in queries]
        try:
            texts = self._apply(turns, add_generation_prompt=True)
        except Exception as error:
            # Templates are programs: they raise errors of any class.
            raise ScoringError(
                f"model {self.model!r}: its chat template cannot render the prompt "
                f"({named(error)}); use prompt=completion"
            ) from None
        start = _FINAL_CHANNEL if texts[0].endswith("<|start|>assistant") else ""
        if thought := _OPEN_THOUGHT.search(texts[0]):
            start = thought.expand(r"\n\1/\2\3\n\n")
        start, space = start or self._gap.removesuffix(" "), "" if start else self._gap[-1:]
        return [text + start for text in texts], space if space == " " else ""

    def _render_roles(self, *roles: str, **options: Any) -> str:
        """Return messages of some roles as rendered; empty if the template refuses them."""
        from jinja2 import TemplateError

        try:
            turns = [{"role": role, "content": f"{role}-turn"} for role in roles]
            return self._apply([turns], **options)[0]
        except (TemplateError, TypeError, ValueError):
            # Templates refuse by an error of their own, or do not expect other roles.
            return ""

    def _apply(self, conversations: list[list[dict[str, str]]], **options: Any) -> list[str]:
        options |= {"chat_template": self._template, "tokenize": False} | NO_THINKING
        return list(self.tokenizer.apply_chat_template(conversations, **options))


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The tokenizer of a model, and the chat template with which it renders prompts, if any.

    Attributes
    ----------
    encode : callable
        Returns the token ids of texts, including the special tokens before a prompt.
    describe : callable
        Returns the text of a token, for messages.
    template : ChatTemplate or None
        Renders prompts as a chat; None if they are plain text.
    appended : int
        Number of special tokens that the tokenizer appends to a text, which `encode` drops.
    """

    encode: Callable[[Sequence[str]], list[list[int]]]
    describe: Callable[[int], str]
    template: ChatTemplate | None = None
    appended: int = 0

    @classmethod
    def of(cls, tokenizer: Any, model: str, prompt: PromptStyle = "auto") -> Self:
        """Return the functions of a Transformers tokenizer.

        Raises
        ------
        ScoringError
            If `prompt` is ``chat`` and the tokenizer has no chat template.
        """
        template = None
        if prompt != "completion" and getattr(tokenizer, "chat_template", None):
            template = ChatTemplate(tokenizer, model)
        elif prompt == "chat":
            raise ScoringError(
                f"model {model!r} has no chat template; use prompt=completion, or a model trained "
                "for chat"
            )
        # A chat template writes the special tokens itself.
        options = {"verbose": False, "add_special_tokens": template is None}

        def encode(texts: Sequence[str]) -> list[list[int]]:
            return [ids[: len(ids) - appended] for ids in tokenizer(texts, **options)["input_ids"]]

        appended = 0
        if template is None:
            # An end of text, for example, after which no model would answer.
            (whole,) = encode(["a"])
            (bare,) = tokenizer(["a"], add_special_tokens=False)["input_ids"]
            appended = whole[::-1].index(bare[-1]) if bare and bare[-1] in whole else 0
        return cls(encode, lambda token: str(tokenizer.decode([token])), template, appended)

    @property
    def settings(self) -> dict[str, str]:
        """What determines the text of prompts."""
        if self.template is None:
            dropped = {"appended tokens": "dropped"} if self.appended else {}
            return {"prompt": "completion", **dropped}
        return {"prompt": f"chat {self.template.digest}"}

    def render(self, prefix: str | PromptPrefix, queries: Sequence[str]) -> tuple[list[str], str]:
        """Return the exact text of one or more prompts, and the space before the answer, if any.

        Raises
        ------
        ScoringError
            If the chat template cannot render the prompt.
        """
        if self.template is not None:
            return self.template.render(prefix, queries)
        texts = [f"{prefix}{query}" for query in queries]
        return texts, "" if texts[0][-1:].isspace() else " "
