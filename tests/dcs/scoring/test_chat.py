"""Prompts by a chat template: the same bytes and tokens as Transformers makes of the messages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcs.errors import ScoringError
from dcs.io import content_key
from dcs.prompting.tasks import select_demonstrations
from dcs.scoring import load_scorer, resolve_model
from dcs.scoring.cache import score_settings
from dcs.scoring.chat import ChatTemplate, Tokenizer
from dcs.scoring.models import load_tokenizer
from tests.dcs.refusals import refuses
from tests.dcs.scoring import test_contract
from tests.dcs.scoring.test_contract import PREFIX, TASK

SHOWN = select_demonstrations(TASK, 2, seed=0)
TEXTS = [example.text for example in TASK.examples("test")[:3]]
QUERIES = test_contract.QUERIES[:3]

#: Templates as three families write them: with a system turn, without one, with a thought.
TEMPLATES = {
    "system": (
        "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n"
        "{{ m.content | trim }}<|eot|>{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
    ),
    "no system": (
        "{{ bos_token }}{% for m in messages %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    ),
    "thinking": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if enable_thinking is defined and enable_thinking is false %}"
        "<think>\n\n</think>\n\n{% endif %}{% endif %}"
    ),
    "answers on a line": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    ),
}


def tokenizer_with(template: str | None) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny_lm").location)
    tokenizer.chat_template = template
    return tokenizer


def messages_of(text: str, *, system: bool) -> list[dict[str, str]]:
    """Write the messages of a prompt out, as a user of the chat template would."""
    turns = []
    for example in SHOWN.examples:
        turns.append({"role": "user", "content": f"Review: {example.text}\nRating:"})
        turns.append({"role": "assistant", "content": TASK.label_words[example.label]})
    turns.append({"role": "user", "content": f"Review: {text}\nRating:"})
    if system:
        return [{"role": "system", "content": TASK.file.instruction}, *turns]
    turns[0]["content"] = f"{TASK.file.instruction}\n\n{turns[0]['content']}"
    return turns


@pytest.mark.parametrize("family", TEMPLATES)
def test_is_what_transformers_renders(family: str) -> None:
    tokenizer, space = tokenizer_with(TEMPLATES[family]), " " if family == "no system" else ""
    messages = [messages_of(text, system=family != "no system") for text in TEXTS]
    options = {"add_generation_prompt": True, "enable_thinking": False}
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    texts, found = ChatTemplate(tokenizer, "m").render(PREFIX, QUERIES)
    # A space before the answer belongs to it, a line break to the prompt.
    line = "\n" if family == "answers on a line" else ""
    assert (texts, found) == ([text + line for text in rendered], space)
    assert [tokenizer(text, add_special_tokens=False)["input_ids"] for text in rendered] == (
        tokenizer.apply_chat_template(messages, return_dict=False, **options)
    )


@pytest.mark.parametrize(
    ("opening", "closed"),
    [
        ("A:<think>\n", "A:<think>\n\n</think>\n\n"),
        ("A:[THINK]", "A:[THINK]\n[/THINK]\n\n"),
        ("<|start|>assistant", "<|start|>assistant<|channel|>final<|message|>"),
    ],
)
def test_a_thought_is_closed(opening: str, closed: str) -> None:
    template = "{{ messages[-1].content }}{% if add_generation_prompt %}" + opening + "{% endif %}"
    texts, space = ChatTemplate(tokenizer_with(template), "m").render("", ["Q"])
    assert (texts, space) == (["Q" + closed], "")


def test_a_template_that_ignores_the_system_message() -> None:
    template = "{% for m in messages if m.role != 'system' %}{{ m.content }}|{% endfor %}"
    texts, _ = ChatTemplate(tokenizer_with(template), "m").render(PREFIX, QUERIES[:1])
    assert texts[0].startswith(TASK.file.instruction)


def test_a_template_that_refuses_the_prompt() -> None:
    template = ChatTemplate(tokenizer_with("{{ raise_exception('never') }}"), "m")
    refuses(ScoringError, template.render, PREFIX, QUERIES, names=["never"])


@pytest.mark.parametrize("call", ['strftime_now("%d %b %Y")', "strftime_now( '%Y-%m-%d' )"])
def test_the_date_is_fixed(call: str) -> None:
    dated = (
        "{{ messages[-1].content }}{% if strftime_now is defined %}{{ " + call + " }}{% endif %}"
    )
    ((text,), _) = ChatTemplate(tokenizer_with(dated), "m").render("", ["Q"])
    assert text in ("Q26 Jul 2024", "Q2024-07-26")


class TestScorer:
    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Return the packaged model with a chat template."""
        folder = tmp_path_factory.mktemp("models") / "chat"
        shutil.copytree(resolve_model("tiny_lm").location, folder)
        (folder / "chat_template.jinja").write_text(TEMPLATES["no system"])
        return folder

    def test_reads_the_labels_where_the_answer_begins(self, folder: Path) -> None:
        scorer = load_scorer(folder, device="cpu")
        probs = scorer.score(PREFIX, QUERIES, TASK.label_words)
        tokenizer = load_tokenizer(folder)
        texts, space = tokenizer.render(PREFIX, QUERIES)
        # The same text as a completion, without the start token that the template wrote.
        plain = load_scorer(folder, device="cpu", prompt="completion")
        bare = [text.removeprefix("<s>") for text in texts]
        assert space == " " and bare != texts
        np.testing.assert_allclose(plain.score("", bare, TASK.label_words), probs, atol=1e-6)

    def test_keys(self, folder: Path) -> None:
        def key(**options: Any) -> str:
            scorer = load_scorer(folder, device="cpu", **options)
            return content_key(score_settings(scorer, PREFIX, TASK.label_words))

        whole = key()
        assert whole == key(prompt="chat") != key(prompt="completion")
        before = resolve_model(folder).revision
        (folder / "chat_template.jinja").write_text(TEMPLATES["thinking"])
        assert resolve_model(folder).revision != before
        assert key() != whole

    def test_another_day(self, folder: Path) -> None:
        template = "{% set how = '%f' %}{{ messages[-1].content }}{{ strftime_now(how) }} "
        (folder / "chat_template.jinja").write_text(template)
        scorers = [load_scorer(folder, device="cpu") for _ in range(2)]
        assert len({scorer.settings["prompt"] for scorer in scorers}) == 2
        names = ["chat template", "run the same command again"]
        refuses(ScoringError, scorers[0].score, "", QUERIES, TASK.label_words, names=names)

    def test_without_a_template(self) -> None:
        names = ["no chat template"]
        refuses(ScoringError, load_scorer, "tiny_lm", device="cpu", prompt="chat", names=names)
        for text, space in (("Side:", " "), ("Side: ", "")):
            assert Tokenizer(list, str).render("", [text]) == ([text], space)
