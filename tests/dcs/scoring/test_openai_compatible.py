"""The HTTP engine against a real local server that serves tiny_lm."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcs.data.forms.logs import fill_missing
from dcs.errors import ConfigError, ScoringError
from dcs.scoring import Scorer, StoredScorer, load_scorer
from dcs.scoring.base import RowsError
from dcs.scoring.cache import score_settings
from dcs.scoring.labels import label_masses
from dcs.scoring.openai import OpenAIScorer
from tests.dcs.refusals import refuses
from tests.dcs.scoring.server import ModelServer
from tests.dcs.scoring.test_contract import PREFIX, QUERIES, TASK, ScorerContract

SECRET = "sk-very-secret-key"
SOON = {"retry-after-ms": "10"}


@pytest.fixture
def server(model_server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    yield model_server
    model_server.reset()


def make(server: ModelServer, **options: Any) -> OpenAIScorer:
    options = {"top_logprobs": 2000} | options
    return OpenAIScorer("tiny_lm", base_url=server.url, **options)


def ask(server: ModelServer, count: int = 1, **options: Any) -> Any:
    return make(server, **options).score("", QUERIES[:count], TASK.label_words)


class TestContract(ScorerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def scorer(cls, model_server: ModelServer) -> Scorer:
        options = {"base_url": model_server.url, "top_logprobs": 2000}
        return load_scorer("tiny_lm", engine="openai", **options)

    def test_agrees_with_transformers(self, scorer: Scorer, tiny_scorer: Scorer) -> None:
        # Other spellings of the labels count too.
        probs = scorer.score(PREFIX, QUERIES, TASK.label_words)
        expected = tiny_scorer.score(PREFIX, QUERIES, TASK.label_words)
        np.testing.assert_allclose(probs, expected, atol=0.01)

    too_long = "query 1: .*400.*its prompt has"


class TestExact:
    WORDS = ("good", "quixotry", "zebra crossing", "zebra stripes")

    @pytest.mark.parametrize("words", [TASK.label_words, WORDS[:3]])
    def test_agrees_with_transformers(self, server: ModelServer, words: tuple[str, ...]) -> None:
        server.exact = True
        local = load_scorer("tiny_lm", device="cpu")
        scorer = make(server, top_logprobs=None)
        found = scorer.score(PREFIX, QUERIES[:8], words)
        np.testing.assert_allclose(found, local.score(PREFIX, QUERIES[:8], words), atol=1e-5)
        assert scorer.settings["log-probabilities"] == "exact"
        refuses(ScoringError, scorer.score, "", QUERIES, self.WORDS, names=["'zebra stripes'"])

    def test_in_a_chat(self, server: ModelServer) -> None:
        server.exact = True
        probs = make(server, api="chat", top_logprobs=None).score("", QUERIES[:3], ("A", "B"))
        ids = [server.encode(text, special=False)[0] for text in ("A", "B")]
        logs = np.array([server.all_logs(server.encode(q))[ids].tolist() for q in QUERIES[:3]])
        expected = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(probs, expected, atol=1e-6)
        assert server.requests[-1][2]["chat_template_kwargs"]["enable_thinking"] is False

    def test_a_server_that_appends_a_token(self, server: ModelServer) -> None:
        server.exact, server.ending = True, [1]
        names = ["appends token 1", "api=chat"]
        refuses(ScoringError, ask, server, top_logprobs=None, names=names)

    def test_a_chat_template_that_prints_the_date(self, server: ModelServer) -> None:
        server.exact = True
        first = make(server, api="chat", top_logprobs=None)
        rendering = first.settings["rendering"]
        server.opening = [7]
        assert make(server, api="chat", top_logprobs=None).settings["rendering"] != rendering
        names = ["chat template", "run the same command again"]
        refuses(ScoringError, first.score, "", QUERIES[:2], ("A", "B"), names=names)

    @pytest.mark.parametrize(("most", "found"), [(5000, "top 20"), (7, "top 5")])
    def test_others_are_asked_once(self, server: ModelServer, most: int, found: str) -> None:
        server.most = most
        scorer = make(server, top_logprobs=None)
        assert scorer.settings["log-probabilities"] == found
        asked = len(server.requests)
        scorer.score(PREFIX, QUERIES[:3], TASK.label_words)
        assert len(server.requests) == asked + 3

    @pytest.mark.parametrize("api", ["completions", "chat"])
    def test_the_other_api_is_named(self, server: ModelServer, api: str) -> None:
        server.paths = ("/v1/completions" if api == "chat" else "/v1/chat/completions",)
        other = "scoring.api=completions" if api == "chat" else "scoring.api=chat"
        for options in ({"top_logprobs": None}, {}, {"votes": 3}):
            scorer = make(server, api=api, **options)
            refuses(ScoringError, scorer.score, PREFIX, QUERIES, ("A", "B"), names=[other])


class TestVotes:
    WORDS = TASK.label_words

    @pytest.mark.parametrize(("api", "most"), [("completions", 7), ("chat", 20)])
    def test_are_counted(self, server: ModelServer, api: str, most: int) -> None:
        server.says = [self.WORDS[0], f"<think>{self.WORDS[2]}?</think>\n{self.WORDS[1]}.", "eh"]
        server.most_samples = most
        # Concurrent requests are rejected together.
        server.pause = 0.01
        scorer = make(server, api=api, votes=9, top_logprobs=None, concurrency=2)
        counts = scorer.score(PREFIX, QUERIES[:2], self.WORDS)
        assert scorer.counts["parsed"] == counts.sum() > 0
        assert (counts[:, 2:] == 0).all()
        assert f"{scorer.counts['parsed']} of 18" in scorer.report()[0]

    def test_one_that_fails_does_not_make_the_others_dearer(self, server: ModelServer) -> None:
        server.says = [self.WORDS[0]]
        scorer = make(server, votes=9, top_logprobs=None, concurrency=1, api="completions")
        server.sick = {f"{PREFIX}{QUERIES[0]}": (422, {}, "{}")}
        with pytest.raises(RowsError):
            scorer.score(PREFIX, QUERIES[:6], self.WORDS)
        assert len(server.requests) == 2 + 5
        scorer.score("", QUERIES[:3], self.WORDS)
        assert scorer.report() == ["27 of 27 sampled answers name one label"]

    def test_answers_without_a_label_are_counted_and_most_of_them_are_an_error(
        self, server: ModelServer
    ) -> None:
        server.says = [*[self.WORDS[0]] * 3, "eh"]
        scorer = make(server, votes=1, top_logprobs=None, concurrency=1)
        counts = scorer.score(PREFIX, QUERIES[:8], self.WORDS)
        assert (scorer.counts["unlabelled"], scorer.counts["answered"]) == (2, 8)
        assert (counts.sum(axis=1) == 0).sum() == 2
        server.says = ["eh"]
        many = [f"{query} {k}" for k, query in enumerate([*QUERIES] * 20)][:25]
        refuses(ScoringError, scorer.score, PREFIX, many, self.WORDS, names=["25 of 25", "eh"])

    def test_a_cut_answer_counts_if_it_begins_with_a_label(self, server: ModelServer) -> None:
        good, bad = self.WORDS[:2]
        said = [(f"The user may mean {bad}", "length"), (f"{good}. The", "length"), (bad, "stop")]
        choices = [{"message": {"content": t}, "finish_reason": why} for t, why in said]
        server.faults = [(200, {}, json.dumps({"choices": choices}))]
        counts = make(server, api="chat", votes=3).score(PREFIX, QUERIES[:1], self.WORDS)
        assert counts[0].tolist() == [1, 1] + [0] * (len(self.WORDS) - 2)

    def test_distributions(self, server: ModelServer) -> None:
        said = [f"{word}: {20 + 5 * k} %" for k, word in enumerate(self.WORDS)]
        server.says = [*[", ".join(said[:4])] * 6, "no idea"]
        scorer = make(server, answer="distribution", top_logprobs=None, concurrency=1)
        with pytest.raises(RowsError, match="states no share .*no idea") as caught:
            scorer.score(PREFIX, QUERIES[:7], self.WORDS)
        assert len(caught.value.reasons) == 1
        rows = np.delete(caught.value.probs, [*caught.value.reasons], axis=0)
        np.testing.assert_allclose(rows, [[0.2, 0.25, 0.3, 0.35, 0.0]] * 6 / np.float64(1.1))
        assert scorer.report() == ["6 of 7 sampled answers state a distribution"]
        assert "stop" not in server.requests[-1][2]


@pytest.mark.parametrize("options", [{"votes": 2}, {"top_logprobs": 9, "api": "chat"}, {}])
def test_a_limit_of_another_name(server: ModelServer, options: dict[str, Any]) -> None:
    server.says, server.limit = [TASK.label_words[0]], "max_completion_tokens"
    scorer = make(server, **{"top_logprobs": None} | options)
    scorer.score("", QUERIES[:6], TASK.label_words)
    assert any("max_tokens" in body for _, _, body, _ in server.requests)
    server.requests.clear()
    scorer.score("", QUERIES[:2], TASK.label_words)
    assert server.requests
    assert not any("max_tokens" in body for _, _, body, _ in server.requests)


class TestRequests:
    def test_one_token_is_asked_for(self, server: ModelServer) -> None:
        scorer = make(server)
        scorer.score(PREFIX, QUERIES[:3], TASK.label_words)
        assert (scorer.counts["answered"], scorer.report()) == (3, [])
        assert len(server.requests) == 3
        path, headers, body, _ = server.requests[0]
        assert path == "/v1/completions"
        assert headers["authorization"] == f"Bearer {SECRET}"
        assert (body["model"], body["max_tokens"]) == ("tiny_lm", 1)
        asked = {body["prompt"] for _, _, body, _ in server.requests}
        assert asked == {f"{PREFIX}{query}" for query in QUERIES[:3]}

    @pytest.mark.parametrize("concurrency", [1, 4])
    def test_concurrency_is_bounded(self, server: ModelServer, concurrency: int) -> None:
        server.pause = 0.02
        ask(server, 8, concurrency=concurrency)
        assert server.most_active <= concurrency
        assert concurrency == 1 or server.most_active > 1

    def test_within_a_running_loop(self, server: ModelServer) -> None:
        async def notebook() -> np.ndarray[Any, Any]:
            return ask(server, 2)

        assert asyncio.run(notebook()).shape == (2, 5)


#: What a server answers, what is said about it, and the requests it takes with two retries.
GIVEN_UP: list[tuple[tuple[int, dict[str, str], str], list[str], set[int]]] = [
    ((503, SOON, "down for\nmaintenance"), ["503"], {3}),
    ((404, {}, '{"error": {"message": "no such model"}}'), ["404", "no such model"], {1}),
    ((307, {"Location": "/v1/completions"}, ""), [], {1}),
    # Newer clients refuse to wait, older ones wait for as long as without the header.
    ((429, {"Retry-After": "86400"}, "come back tomorrow"), ["429"], {1, 3}),
]


class TestFaults:
    @pytest.mark.parametrize("status", [0, 429, 500])  # 0: hangs up
    def test_failures_that_pass(self, server: ModelServer, status: int) -> None:
        expected = ask(server, 4)
        server.faults = [(status, SOON, "busy")] * 3
        np.testing.assert_array_equal(ask(server, 4, retries=4), expected)
        assert server.faults == []

    @pytest.mark.parametrize(("fault", "names", "requests"), GIVEN_UP)
    def test_others_are_told(
        self, server: ModelServer, fault: Any, names: list[str], requests: set[int]
    ) -> None:
        server.faults = [fault] * 9
        names = ["query 0", *names]
        refuses(ScoringError, ask, server, 24, retries=2, concurrency=1, names=names)
        assert len(server.requests) in requests

    @pytest.mark.parametrize(
        ("fault", "exact"),
        [
            *(((500, SOON, "boom"), True), ((0, {}, ""), True)),
            *(((400, {}, "filtered"), False), ((200, {}, "{}"), False)),
        ],
    )
    def test_a_prompt_that_always_fails_costs_its_row(
        self, server: ModelServer, fault: Any, exact: bool
    ) -> None:
        server.exact = exact
        top = {"top_logprobs": None if exact else 2000, "retries": 0}
        expected = ask(server, 20, **top)
        server.sick = dict.fromkeys(QUERIES[6:18], fault)
        with pytest.raises(RowsError) as caught:
            ask(server, 20, **top)
        assert [*caught.value.reasons] == [*range(6, 18)]
        healthy = [*range(6), 18, 19]
        np.testing.assert_allclose(caught.value.probs[healthy], expected[healthy], atol=1e-9)
        # A server that answers nothing is another thing.
        server.sick = dict.fromkeys([*QUERIES, "A"], fault)
        with pytest.raises(ScoringError) as other:
            ask(server, 20, top_logprobs=2000, retries=0, concurrency=1)
        assert not isinstance(other.value, RowsError)

    def test_after_four_failures_in_a_row_the_server_is_asked_whether_it_answers(
        self, server: ModelServer
    ) -> None:
        failing = np.random.default_rng(0).random(24) < 0.75
        server.sick = {q: (400, {}, "no") for q, bad in zip(QUERIES, failing, strict=True) if bad}
        refuses(RowsError, ask, server, 24, retries=0, concurrency=1)
        asked = [body["prompt"] for _, _, body, _ in server.requests].count("A")
        runs = [len([*run]) for bad, run in itertools.groupby(failing) if bad]
        assert asked == sum(run // 4 for run in runs) > 0


def returned(shown: dict[str, float], *, choices: int = 1, tokens: int = 3) -> str:
    """Return the answer of a server to either API."""
    entries = [{"token": token, "logprob": logprob} for token, logprob in shown.items()]
    logprobs = {"top_logprobs": [shown], "content": [{"top_logprobs": entries}]}
    usage = {"prompt_tokens": tokens}
    return json.dumps({"choices": [{"logprobs": logprobs}] * choices, "usage": usage})


def logs(value: float) -> dict[str, float]:
    return {"a": -9.0} | {f" {word}": value for word in TASK.label_words}


WRONG = {
    "no JSON": "<html>",
    "nothing": '{"choices": [{"logprobs": null}]}',
    "deep": '{"choices": ' + "[" * 10**5,
    "+500": returned(logs(500.0)),
    "above 0": returned(logs(0.1)),
    "sum above 1": returned(logs(-0.1)),
    "NaN": returned(logs(math.nan)),
    "all 0": returned({" good": -9999.0}),
    "1,000 choices": returned(logs(-2.0), choices=1000),
    "negative count": returned(logs(-2.0), tokens=-3),
}


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_an_answer_that_cannot_be_true(server: ModelServer, api: str, body: str) -> None:
    server.faults = [(200, {}, body)]
    refuses(ScoringError, ask, server, api=api, retries=0, names=["query 0"])


class TestBounds:
    """What a server can make the client wait for, read and unpack."""

    @pytest.mark.parametrize("status", [200, 400, 503])
    def test_an_answer_without_end(self, server: ModelServer, status: int) -> None:
        server.faults = [(status, {}, itertools.repeat(b" " * 2**20))]
        refuses(ScoringError, ask, server, retries=0)
        assert server.sent < 2**26

    @pytest.mark.parametrize("part", [b" ", b"x: y\r\n"])
    def test_an_answer_that_drips(self, server: ModelServer, part: bytes) -> None:
        drops = (time.sleep(0.02) or part for _ in itertools.count())
        head = [b"HTTP/1.1 200 OK\r\n"] if b":" in part else []
        server.faults = [(-1 if head else 200, {}, itertools.chain(head, drops))] * 9
        refuses(ScoringError, ask, server, retries=8, timeout=0.1, names=["query 0"])
        assert len(server.requests) < 9

    def test_a_packed_answer(self, server: ModelServer) -> None:
        bomb = gzip.compress(bytes(2**25))
        server.faults = [(200, {"Content-Encoding": "gzip"}, [bomb])]
        refuses(ScoringError, ask, server, retries=0, names=["gzip"])
        assert server.requests[0][1]["accept-encoding"] == "identity"


def test_secrets_are_never_told(
    server: ModelServer, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The key, and a path, which may contain one: it is recorded only if it is an API version."""
    assert make(server).revision == server.url
    address = f"{server.url.removesuffix('/v1')}/planted7/v1"
    with pytest.raises(ConfigError, match="revision") as unversioned:
        OpenAIScorer("tiny_lm", base_url=address)
    server.key, server.paths = SECRET, ("/planted7/v1/completions",)
    engine = OpenAIScorer("tiny_lm", base_url=address, revision="one", top_logprobs=9, retries=0)
    scorer = StoredScorer(engine, tmp_path)
    refused = []
    with caplog.at_level(logging.DEBUG):
        scorer.score("", QUERIES[:2], TASK.label_words)
        for status in (400, 401, 404, 405):
            told = f"no /planted7/v1/completions at planted7 for Bearer {SECRET}"
            server.faults = [(status, {}, json.dumps({"error": {"message": told}}))]
            with pytest.raises(ScoringError) as caught:
                scorer.score("", QUERIES[2:3], TASK.label_words)
            refused.append(caught.value)
    assert "OPENAI_API_KEY" in str(refused[1])
    settings = score_settings(scorer, "", TASK.label_words)
    said = f"{caplog.text} {unversioned.value} {refused} {scorer!r} {settings} {engine.base_url}"
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for secret in (SECRET, "planted7"):
        assert secret.encode() not in b"".join([said.encode(), *files])
    assert SECRET not in str(vars(engine))


def test_a_text_that_is_returned_twice(server: ModelServer) -> None:
    shown = [("false", -0.233), ("true", -1.577), ("null", -8.389), ("false", -8.475)]
    shown += [("Ã", -20.0), ("Ã", -math.inf)]
    entries = [
        {"token": token, "logprob": value, "bytes": [*token.encode()]} for token, value in shown
    ]
    answer = {"choices": [{"logprobs": {"content": [{"top_logprobs": entries}]}}]}
    server.faults = [(200, {}, json.dumps(answer))]
    (row,) = make(server, api="chat").score("", ["Is it?"], ("true", "false"))
    np.testing.assert_allclose(row, [0.207, 0.793], atol=5e-4)


class TestMissing:
    def test_labels_have_a_share_of_the_rest(self, server: ModelServer) -> None:
        shown = {" good": -1.0, "the": -2.0}
        server.faults = [(200, {}, returned(shown))]
        scorer = make(server)
        (row,) = scorer.score("", ["Is it?"], ("good", "bad"))
        tokens = [*shown.items()]
        expected = fill_missing(label_masses(tokens, ("good", "bad")), np.exp([-1.0, -2.0]))
        np.testing.assert_allclose(row, expected)
        assert scorer.missing == {"bad": 1} and len(scorer.report()) == 1

    def test_no_label_at_all(self, server: ModelServer) -> None:
        scorer = make(server, top_logprobs=2)
        words = ("quixotry", "zebra")
        refuses(ScoringError, scorer.score, PREFIX, QUERIES, words, names=["query "])
