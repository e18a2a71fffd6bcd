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

from dcs.errors import ConfigError, ScoringError
from dcs.prompting import chat_messages
from dcs.scoring import Scorer, StoredScorer, load_scorer, score_settings
from dcs.scoring.openai import OpenAIScorer, best_token
from tests.dcs.refusals import refuses
from tests.dcs.scoring.server import ModelServer
from tests.dcs.scoring.test_contract import PREFIX, QUERIES, TASK, ScorerContract

SECRET = "sk-very-secret-key"
SOON = {"retry-after-ms": "10"}


@pytest.fixture(scope="module")
def running() -> Iterator[ModelServer]:
    server = ModelServer()
    with server.serving():
        yield server


@pytest.fixture
def server(running: ModelServer, monkeypatch: pytest.MonkeyPatch) -> ModelServer:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    running.reset()
    return running


def make(server: ModelServer, **options: Any) -> OpenAIScorer:
    options = {"top_logprobs": 2000} | options
    return OpenAIScorer("tiny_lm", base_url=server.url, **options)


def ask(server: ModelServer, count: int = 1, **options: Any) -> Any:
    return make(server, **options).score("", QUERIES[:count], TASK.label_words)


class TestContract(ScorerContract):
    @pytest.fixture
    def scorer(self, server: ModelServer) -> Scorer:
        return load_scorer("tiny_lm", engine="openai", base_url=server.url, top_logprobs=2000)

    def test_too_long_a_prompt_is_refused(self, scorer: Scorer) -> None:
        with pytest.raises(ScoringError, match="query 1: .*400.*its prompt has"):
            scorer.score("", [QUERIES[0], "long " * 5000], TASK.label_words)


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_agrees_with_transformers(server: ModelServer, api: str) -> None:
    expected = load_scorer("tiny_lm", device="cpu").score(PREFIX, QUERIES, TASK.label_words)
    scorer = make(server, api=api, prompt="completion")
    probs = scorer.score(PREFIX, QUERIES, TASK.label_words)
    # A chat model may answer without the space, so that both spellings are looked at.
    np.testing.assert_allclose(probs, expected, atol=1e-5 if api == "completions" else 0.2)


class TestRequests:
    def test_messages_of_a_chat(self, server: ModelServer) -> None:
        make(server, api="chat").score(PREFIX, QUERIES[:1], TASK.label_words)
        ((path, _, body, _),) = server.requests
        assert path == "/v1/chat/completions"
        assert body["messages"] == chat_messages(PREFIX, QUERIES[0])

    def test_one_token_is_asked_for(self, server: ModelServer) -> None:
        scorer = make(server)
        scorer.score(PREFIX, QUERIES[:3], TASK.label_words)
        assert (scorer.answered, scorer.report()) == (3, [])
        assert len(server.requests) == 3
        path, headers, body, _ = server.requests[0]
        assert path == "/v1/completions"
        assert headers["authorization"] == f"Bearer {SECRET}"
        assert (body["model"], body["max_tokens"]) == ("tiny_lm", 1)
        assert {b["prompt"] for _, _, b, _ in server.requests} == {
            f"{PREFIX}{q}" for q in QUERIES[:3]
        }

    @pytest.mark.parametrize("concurrency", [1, 4])
    def test_concurrency_is_bounded(self, server: ModelServer, concurrency: int) -> None:
        server.pause = 0.02
        ask(server, 24, concurrency=concurrency)
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

    def test_waits_as_long_as_the_server_says(self, server: ModelServer) -> None:
        server.faults = [(429, {"Retry-After": "1"}, "slow down")]
        ask(server)
        first, second = (moment for *_, moment in server.requests)
        assert second - first >= 0.95

    @pytest.mark.parametrize(("fault", "names", "requests"), GIVEN_UP)
    def test_others_are_told(
        self, server: ModelServer, fault: Any, names: list[str], requests: set[int]
    ) -> None:
        server.faults = [fault] * 9
        names = ["query 0", *names]
        refuses(ScoringError, ask, server, 24, retries=2, concurrency=1, names=names)
        assert len(server.requests) in requests

    @pytest.mark.parametrize("api", ["completions", "chat"])
    @pytest.mark.parametrize(
        "body",
        [
            "{}",
            "<html>",
            '{"choices": [{"logprobs": null}]}',
            '{"choices": ' + "[" * 10**5,
            '{"choices": [{"logprobs": {"top_logprobs": [{"a": 9}], "content": '
            '[{"top_logprobs": [{"token": "a", "logprob": 9}]}]}}]}'.replace("9", "9" * 400),
        ],
        ids=["empty", "no JSON", "nothing", "deep", "huge"],
    )
    def test_no_log_probabilities(self, server: ModelServer, body: str, api: str) -> None:
        server.faults = [(200, {}, body)]
        refuses(ScoringError, ask, server, api=api, retries=0, names=["query 0"])


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize(
    ("value", "choices", "tokens"),
    [(500.0, 1, 3), (0.1, 1, 3), (-0.1, 1, 3), (math.nan, 1, 3), (-2.0, 1000, 3), (-2.0, 1, -3)],
    ids=["+500", "above 0", "sum above 1", "NaN", "1,000 choices", "negative count"],
)
def test_an_answer_that_cannot_be_true(
    server: ModelServer, api: str, value: float, choices: int, tokens: int
) -> None:
    shown = {f" {word}": value for word in TASK.label_words}
    entries = [{"token": token, "logprob": value} for token in shown]
    logprobs = {"top_logprobs": [shown], "content": [{"top_logprobs": entries}]}
    answer = {"choices": [{"logprobs": logprobs}] * choices, "usage": {"prompt_tokens": tokens}}
    server.faults = [(200, {}, json.dumps(answer))]
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
        refuses(ScoringError, ask, server, retries=8, timeout=0.3, names=["query 0"])
        assert len(server.requests) < 9

    def test_a_packed_answer(self, server: ModelServer) -> None:
        bomb = gzip.compress(bytes(2**25))
        server.faults = [(200, {"Content-Encoding": "gzip"}, [bomb])]
        refuses(ScoringError, ask, server, retries=0, names=["gzip"])
        assert server.requests[0][1]["accept-encoding"] == "identity"

    @pytest.mark.parametrize(
        "given", ["me:{}@h/v1", "{}@h/v1", "h/v1?api_key={}", "h/v1?{}", "h/v1#{}", "h/hf_{}/v1"]
    )
    def test_an_address_holds_no_secret(self, given: str) -> None:
        with pytest.raises(ConfigError, match="base_url") as caught:
            OpenAIScorer("tiny_lm", base_url=f"https://{given.format('planted0123456789')}")
        assert "planted" not in str(caught.value)


class TestKey:
    def test_is_never_told(
        self, server: ModelServer, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        server.key = SECRET
        with caplog.at_level(logging.DEBUG):
            engine = make(server)
            scorer = StoredScorer(engine, tmp_path)
            scorer.score("", QUERIES[:2], TASK.label_words)
            server.faults = [(400, {}, json.dumps({"error": {"message": f"bad Bearer {SECRET}"}}))]
            with pytest.raises(ScoringError) as refused:
                ask(server)
        settings = score_settings(scorer, "", TASK.label_words)
        told = f"{caplog.text} {refused.value} {scorer!r} {vars(engine)} {settings}".encode()
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert files and SECRET.encode() not in b"".join([told, *files])

    def test_a_wrong_key(self, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
        server.key = SECRET
        monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong")
        with pytest.raises(ScoringError, match="API key.*OPENAI_API_KEY") as caught:
            ask(server)
        assert "sk-wrong" not in str(caught.value)


class TestMissing:
    # Few tokens are shown, so that some labels are missing from some answers.
    @pytest.mark.parametrize("rule", ["bound", "zero"])
    def test_rules(self, server: ModelServer, rule: str) -> None:
        words = {f" {word}" for word in TASK.label_words}
        queries = [q for q in QUERIES if words & set(server.next_tokens(f"{PREFIX}{q}", 4))]
        assert len(queries) > 5
        scorer = make(server, top_logprobs=4, missing=rule)
        probs = scorer.score(PREFIX, queries, TASK.label_words)
        absent = 0
        for query, row in zip(queries, probs, strict=True):
            shown = server.next_tokens(f"{PREFIX}{query}", 4)
            assert isinstance(shown, dict)
            rest = min(shown.values()) if rule == "bound" else -np.inf
            logs = np.array([shown.get(f" {word}", rest) for word in TASK.label_words])
            np.testing.assert_allclose(row, np.exp(logs) / np.exp(logs).sum(), rtol=1e-9)
            absent += sum(f" {word}" not in shown for word in TASK.label_words)
        assert scorer.missing.total() == absent > 0
        assert len(scorer.report()) == len(scorer.missing)

    def test_some_by_default_and_all_by_any_rule_are_refused(self, server: ModelServer) -> None:
        given = ((TASK.label_words, {}), (("quixotry", "zebra"), {"missing": "zero"}))
        for words, rule in given:
            scorer = make(server, top_logprobs=2, **rule)
            names = ["query 0", repr(words[0])]
            refuses(ScoringError, scorer.score, PREFIX, QUERIES[:1], words, names=names)
        with pytest.raises(ScoringError, match="top_logprobs$"):  # no rule helps then
            scorer.score(PREFIX, QUERIES[:1], words)

    def test_a_token_of_two_words_counts_for_neither(self) -> None:
        shown = {" A": -0.1, " Ar": -0.5, " Ath": -0.7, "Ath": -0.2, "": -1.0, " ": -1.0}
        words = ("Artist", "Athlete")
        assert best_token(shown, "Artist", words, True) == -0.5
        assert best_token(shown, "Athlete", words, True) == -0.7
        assert best_token(shown, "Athlete", words, False) == -0.2
        assert best_token({" A": -0.1}, "Artist", words, True) is None
