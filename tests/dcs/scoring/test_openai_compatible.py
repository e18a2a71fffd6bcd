"""The HTTP engine against a real local server that serves tiny_lm."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dcs.errors import ConfigError, ScoringError
from dcs.scoring import Scorer, StoredScorer, load_scorer, score_settings
from dcs.scoring.openai import OpenAIScorer, best_token
from tests.dcs.refusals import refuses
from tests.dcs.scoring.server import ModelServer
from tests.dcs.scoring.test_contract import PREFIX, QUERIES, TASK, ScorerContract

SECRET = "sk-very-secret-key"
SOON = {"retry-after-ms": "10"}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ModelServer, str]]:
    server = ModelServer()
    with server.serving() as url:
        yield server, url


@pytest.fixture
def server(running: tuple[ModelServer, str], monkeypatch: pytest.MonkeyPatch) -> ModelServer:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    running[0].reset()
    return running[0]


@pytest.fixture
def url(running: tuple[ModelServer, str], server: ModelServer) -> str:
    return running[1]


def make(url: str, **options: Any) -> OpenAIScorer:
    return OpenAIScorer("tiny_lm", base_url=url, **({"top_logprobs": 2000} | options))


def ask(url: str, count: int = 1, **options: Any) -> Any:
    return make(url, **options).score("", QUERIES[:count], TASK.label_words)


class TestContract(ScorerContract):
    @pytest.fixture
    def scorer(self, url: str) -> Scorer:
        return load_scorer("tiny_lm", engine="openai", base_url=url, top_logprobs=2000)

    def test_too_long_a_prompt_is_refused(self, scorer: Scorer) -> None:
        with pytest.raises(ScoringError, match="query 1: .*400.*its prompt has"):
            scorer.score("", [QUERIES[0], "long " * 5000], TASK.label_words)


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_agrees_with_transformers(url: str, api: str) -> None:
    expected = load_scorer("tiny_lm", device="cpu").score(PREFIX, QUERIES, TASK.label_words)
    probs = make(url, api=api).score(PREFIX, QUERIES, TASK.label_words)
    # A chat model may answer without the space, so that both spellings are looked at.
    np.testing.assert_allclose(probs, expected, atol=1e-5 if api == "completions" else 0.2)


class TestRequests:
    def test_one_token_is_asked_for(self, server: ModelServer, url: str) -> None:
        scorer = make(url)
        scorer.score(PREFIX, QUERIES[:3], TASK.label_words)
        assert (scorer.answered, scorer.report()) == (3, [])
        assert len(server.requests) == 3
        path, headers, body, _ = server.requests[0]
        assert path == "/v1/completions"
        assert headers["authorization"] == f"Bearer {SECRET}"
        assert (body["model"], body["max_tokens"]) == ("tiny_lm", 1)
        assert {b["prompt"] for _, _, b, _ in server.requests} == {PREFIX + q for q in QUERIES[:3]}

    @pytest.mark.parametrize("concurrency", [1, 4])
    def test_concurrency_is_bounded(self, server: ModelServer, url: str, concurrency: int) -> None:
        server.pause = 0.02
        ask(url, 24, concurrency=concurrency)
        assert server.most_active <= concurrency
        assert concurrency == 1 or server.most_active > 1

    def test_within_a_running_loop(self, url: str) -> None:
        async def notebook() -> np.ndarray[Any, Any]:
            return ask(url, 2)

        assert asyncio.run(notebook()).shape == (2, 5)


class TestFaults:
    @pytest.mark.parametrize("status", [0, 429, 500])  # 0: hangs up
    def test_failures_that_pass(self, server: ModelServer, url: str, status: int) -> None:
        expected = ask(url, 4)
        server.faults = [(status, SOON, "busy")] * 3
        np.testing.assert_array_equal(ask(url, 4, retries=4), expected)
        assert server.faults == []

    def test_waits_as_long_as_the_server_says(self, server: ModelServer, url: str) -> None:
        server.faults = [(429, {"Retry-After": "1"}, "slow down")]
        ask(url)
        first, second = (moment for *_, moment in server.requests)
        assert second - first >= 0.95

    def test_a_server_cannot_have_it_wait_for_days(self, server: ModelServer, url: str) -> None:
        # Newer clients refuse to wait, older ones wait for as long as without the header.
        server.faults = [(429, {"Retry-After": "86400"}, "come back tomorrow")] * 9
        refuses(ScoringError, ask, url, retries=1, names=["query 0", "429"])

    def test_gives_up_in_one_line(self, server: ModelServer, url: str) -> None:
        server.faults = [(503, SOON, "down for\nmaintenance")] * 100
        refuses(ScoringError, ask, url, 24, retries=2, concurrency=1, names=["query 0", "503"])
        assert len(server.requests) == 3

    def test_nobody_listens(self) -> None:
        refuses(ScoringError, ask, "http://127.0.0.1:1/v1", retries=0, names=["127.0.0.1:1"])

    def test_other_refusals_are_not_repeated(self, server: ModelServer, url: str) -> None:
        server.faults = [(404, {}, '{"error": {"message": "no such model"}}')] * 9
        refuses(
            ScoringError, ask, url, 2, concurrency=1, names=["query 0", "404", "no such model"]
        )
        assert len(server.requests) == 1

    def test_redirects_are_not_followed(self, server: ModelServer, url: str) -> None:
        server.faults = [(307, {"Location": f"{url}/completions"}, "")]
        refuses(ScoringError, ask, url, names=["query 0"])
        assert len(server.requests) == 1

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
    def test_no_log_probabilities(
        self, server: ModelServer, url: str, body: str, api: str
    ) -> None:
        server.faults = [(200, {}, body)]
        refuses(ScoringError, ask, url, api=api, retries=0, names=["query 0"])


def slowly(part: bytes) -> Iterator[bytes]:
    while True:
        time.sleep(0.02)
        yield part


class TestBounds:
    """What a server can make the client wait for, read and unpack."""

    @pytest.mark.parametrize("status", [200, 400, 503])
    def test_an_answer_without_end(self, server: ModelServer, url: str, status: int) -> None:
        server.faults = [(status, {}, itertools.repeat(b" " * 2**20))]
        refuses(ScoringError, ask, url, retries=0)
        assert server.sent < 2**26

    @pytest.mark.parametrize("part", [b" ", b"x: y\r\n"])
    def test_an_answer_that_drips(
        self, server: ModelServer, url: str, part: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dcs.scoring.openai._LONGEST_WAIT", 0.2)
        start = [b"HTTP/1.1 200 OK\r\n"] if b":" in part else []
        server.faults = [(-1 if start else 200, {}, itertools.chain(start, slowly(part)))]
        refuses(ScoringError, ask, url, retries=0, timeout=0.3, names=["query 0"])

    def test_a_packed_answer(self, server: ModelServer, url: str) -> None:
        bomb = gzip.compress(bytes(2**25))
        server.faults = [(200, {"Content-Encoding": "gzip"}, [bomb])]
        refuses(ScoringError, ask, url, retries=0, names=["gzip"])
        assert server.requests[0][1]["accept-encoding"] == "identity"

    @pytest.mark.parametrize(
        "given", ["me:{}@h/v1", "{}@h/v1", "h/v1?api_key={}", "h/v1?{}", "h/v1#{}", "h/hf_{}/v1"]
    )
    def test_an_address_holds_no_secret(self, given: str) -> None:
        with pytest.raises(ConfigError, match="base_url") as caught:
            make(f"https://{given.format('planted0123456789')}")
        assert "planted" not in str(caught.value)


class TestKey:
    def test_is_never_told(
        self,
        server: ModelServer,
        url: str,
        caplog: pytest.LogCaptureFixture,
        tmp_path: Any,
    ) -> None:
        server.key = SECRET
        with caplog.at_level(logging.DEBUG):
            engine = make(url)
            scorer = StoredScorer(engine, tmp_path)
            scorer.score("", QUERIES[:2], TASK.label_words)
            server.faults = [(400, {}, json.dumps({"error": {"message": f"bad Bearer {SECRET}"}}))]
            with pytest.raises(ScoringError) as refused:
                ask(url)
        told = [caplog.text, str(refused.value), repr(scorer), str(vars(engine))]
        told.append(str(score_settings(scorer, "", TASK.label_words)))
        told += [p.read_bytes().decode("latin-1") for p in tmp_path.rglob("*") if p.is_file()]
        assert not any(SECRET in text for text in told)

    def test_a_wrong_key(
        self, server: ModelServer, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.key = SECRET
        monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong")
        with pytest.raises(ScoringError, match="refuses the API key.*OPENAI_API_KEY") as caught:
            ask(url)
        assert "sk-wrong" not in str(caught.value)


class TestMissing:
    # Few tokens are shown, so that some labels are missing from some answers.
    def test_error_is_the_default(self, url: str) -> None:
        with pytest.raises(ScoringError, match="label words"):
            make(url, top_logprobs=2).score(PREFIX, QUERIES, TASK.label_words)

    @pytest.mark.parametrize("rule", ["bound", "zero"])
    def test_rules(self, server: ModelServer, url: str, rule: str) -> None:
        words = {f" {word}" for word in TASK.label_words}
        queries = [q for q in QUERIES if words & set(server.next_tokens(PREFIX + q, 4))]
        assert len(queries) > 5
        scorer = make(url, top_logprobs=4, missing=rule)
        probs = scorer.score(PREFIX, queries, TASK.label_words)
        absent = 0
        for query, row in zip(queries, probs, strict=True):
            shown = server.next_tokens(PREFIX + query, 4)
            assert isinstance(shown, dict)
            rest = min(shown.values()) if rule == "bound" else -np.inf
            logs = np.array([shown.get(f" {word}", rest) for word in TASK.label_words])
            np.testing.assert_allclose(row, np.exp(logs) / np.exp(logs).sum(), rtol=1e-9)
            absent += sum(f" {word}" not in shown for word in TASK.label_words)
        assert scorer.missing.total() == absent > 0
        assert len(scorer.report()) == len(scorer.missing)

    def test_no_label_at_all(self, url: str) -> None:
        with pytest.raises(ScoringError, match="query 0"):
            make(url, top_logprobs=3, missing="zero").score(
                PREFIX, QUERIES[:1], ("quixotry", "zebra")
            )

    def test_a_token_of_two_words_counts_for_neither(self) -> None:
        shown = {" A": -0.1, " Ar": -0.5, " Ath": -0.7, "Ath": -0.2, "": -1.0, " ": -1.0}
        words = ("Artist", "Athlete")
        assert best_token(shown, "Artist", words, True) == -0.5
        assert best_token(shown, "Athlete", words, True) == -0.7
        assert best_token(shown, "Athlete", words, False) == -0.2
        assert best_token({" A": -0.1}, "Artist", words, True) is None
