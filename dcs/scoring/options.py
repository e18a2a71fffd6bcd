"""Options of the packaged engines, as they are written in a sweep: a model for each engine.

An engine of another package may have such a model too; see :class:`dcs.scoring.base.Engine`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainSerializer

from dcs.errors import origin, plain_address
from dcs.io import Strict
from dcs.prompting.prompts import AnswerPrefix
from dcs.scoring.answers import MissingRule
from dcs.scoring.chat import PromptStyle
from dcs.scoring.labels import JointScore, LabelRule


def _check_address(address: str) -> str:
    # Checked here too, before the address is written to a plan or a record.
    plain_address(address)
    return address


class ReadingOptions(Strict):
    """How prompts are written and their answers are read.

    Attributes
    ----------
    label_rule : "auto", "mean", "first" or "joint"
        How label words of several tokens are scored; see :data:`dcs.scoring.LabelRule`.
    prompt : "auto", "completion" or "chat"
        Plain text, or chat messages by the chat template of the model; ``auto`` is ``chat`` if
        the model has a template. See :data:`dcs.scoring.PromptStyle`.
    answer_prefix : "user", "assistant" or "none"
        Whose turn in a chat holds the answer prefix; see :data:`dcs.prompting.AnswerPrefix`.
    votes, temperature, max_tokens : int, float, int or None
        Number of answers to sample for each prompt instead of reading log-probabilities, their
        temperature, and their maximum number of tokens.
    answer : "distribution" or None
        What sampled answers say: a share of each label instead of one label.
    """

    label_rule: LabelRule = "auto"
    prompt: PromptStyle = "auto"
    answer_prefix: AnswerPrefix = "user"
    votes: int | None = Field(default=None, ge=1, le=1000)
    temperature: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, ge=1)
    answer: Literal["distribution"] | None = None


class LocalOptions(ReadingOptions):
    """Options of the engines that run the model themselves.

    Attributes
    ----------
    joint : "sum", "mean" or "unconditional"
        How the rule ``joint`` scores a word; see :data:`dcs.scoring.JointScore`.
    dtype : str or None
        Precision; by default bfloat16 on a GPU and float32 on a CPU.
    """

    joint: JointScore = "sum"
    dtype: str | None = None


class TransformersOptions(LocalOptions):
    """Options of the engine ``transformers``.

    Attributes
    ----------
    device : str or None
        ``cpu``, ``cuda:1``, ...; by default a GPU if available.
    """

    device: str | None = None


class VLLMOptions(LocalOptions):
    """Options of the engine ``vllm``.

    Attributes
    ----------
    tensor_parallel : int or None
        Number of GPUs per model; reserved by each actor of a sweep.
    memory, max_length : float, int or None
        Fraction of GPU memory to use, and maximum number of tokens of a prompt, by default as
        many as the context of the model and the memory allow.
    batch_invariant : bool or None
        Whether a prompt is computed in the same way in every batch.
    """

    tensor_parallel: int | None = Field(default=None, ge=1)
    memory: float | None = Field(default=None, gt=0.0, le=1.0)
    max_length: int | None = Field(default=None, ge=1)
    batch_invariant: bool | None = None


class OpenAIOptions(ReadingOptions):
    """Options of the engine ``openai``; see :class:`dcs.scoring.openai.OpenAIScorer`.

    Attributes
    ----------
    base_url, api, top_logprobs, missing, concurrency, retries, timeout : optional
        The server, what it is asked for, and how.
    revision : str or None
        Exact version of the served model, if known.
    key_variable : str or None
        Environment variable with the API key; by default OPENAI_API_KEY.
    """

    # JSON is what is recorded: without the path, which may contain a key.
    base_url: (
        Annotated[str, AfterValidator(_check_address), PlainSerializer(origin, when_used="json")]
        | None
    ) = None
    api: Literal["completions", "chat"] | None = None
    top_logprobs: int | None = Field(default=None, ge=1)
    missing: MissingRule | None = None
    concurrency: int | None = Field(default=None, ge=1)
    retries: int | None = Field(default=None, ge=0)
    timeout: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    revision: str | None = None
    key_variable: str | None = None
