"""The HTTP engine against a real local server that serves tiny_lm."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dcs.errors import ConfigError, MissingDependencyError, ScoringError
from dcs.scoring import Scorer, StoredScorer, load_scorer, score_settings
from dcs.scoring import openai as _http
from dcs.scoring.cache import ShardStore
from dcs.scoring.models import load_tokenizer
from dcs.scoring.openai import OpenAIScorer, best_token, pause_asked, word_log_probability
from tests.dcs.scoring.server import ModelServer
from tests.dcs.scoring.test_contract import PREFIX, QUERIES, TASK, ScorerContract

SECRET = "sk-very-secret-key"


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ModelServer, str]]:
    server = ModelServer()
    with server.serving() as url:
        yield server, url


@pytest.fixture
def server(running: tuple[ModelServer, str], monkeypatch: pytest.MonkeyPatch) -> ModelServer:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setattr(_http, "FIRST_WAIT", 0.01)
    running[0].reset()
    return running[0]


@pytest.fixture
def url(running: tuple[ModelServer, str], server: ModelServer) -> str:
    return running[1]


def test_nothing_missing_nothing_reported(url: str) -> None:
    scorer = make(url)
    scorer.score("", QUERIES[:3], TASK.label_words)
    assert scorer.report() == []
    assert scorer.answered == 3


def make(url: str, **options: Any) -> OpenAIScorer:
    return OpenAIScorer("tiny_lm", base_url=url, **({"top_logprobs": 2000} | options))


class TestContract(ScorerContract):
    @pytest.fixture
    def scorer(self, url: str) -> Scorer:
        return load_scorer("tiny_lm", engine="openai", base_url=url, top_logprobs=2000)

    def test_too_long_a_prompt_is_refused(self, scorer: Scorer) -> None:
        with pytest.raises(ScoringError, match="query 1: .* status 400: its prompt has"):
            scorer.score("", [QUERIES[0], "long " * 5000], TASK.label_words)


class TestContractOfWholeWords(TestContract):
    @pytest.fixture
    def scorer(self, url: str) -> Scorer:
        return load_scorer("tiny_lm", engine="openai", base_url=url, label_rule="joint")


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_agrees_with_transformers(url: str, api: str) -> None:
    expected = load_scorer("tiny_lm", device="cpu").score(PREFIX, QUERIES, TASK.label_words)
    probs = make(url, api=api).score(PREFIX, QUERIES, TASK.label_words)
    # A chat model may answer without the space, so that both spellings are looked at.
    np.testing.assert_allclose(probs, expected, atol=1e-5 if api == "completions" else 0.2)


class TestRequests:
    def test_one_token_is_asked_for(self, server: ModelServer, url: str) -> None:
        make(url).score(PREFIX, QUERIES[:3], TASK.label_words)
        assert len(server.requests) == 3
        path, headers, body, _ = server.requests[0]
        assert path == "/v1/completions"
        assert headers["Authorization"] == f"Bearer {SECRET}"
        assert (body["model"], body["max_tokens"]) == ("tiny_lm", 1)
        assert {b["prompt"] for _, _, b, _ in server.requests} == {PREFIX + q for q in QUERIES[:3]}

    @pytest.mark.parametrize("concurrency", [1, 4])
    def test_concurrency_is_bounded(self, server: ModelServer, url: str, concurrency: int) -> None:
        server.pause = 0.02
        make(url, concurrency=concurrency).score("", QUERIES, TASK.label_words)
        assert server.most_active <= concurrency
        assert concurrency == 1 or server.most_active > 1

    def test_within_a_running_loop(self, url: str) -> None:
        async def notebook() -> np.ndarray[Any, Any]:
            return make(url).score("", QUERIES[:2], TASK.label_words)

        assert asyncio.run(notebook()).shape == (2, 5)


class TestEstimate:
    WORDS = TASK.label_words

    @staticmethod
    def tokens() -> int:
        count = load_tokenizer("tiny_lm")
        return sum(len(count(PREFIX + query)["input_ids"]) for query in QUERIES)

    def test_the_server_counts(self, server: ModelServer, url: str) -> None:
        estimate = make(url).estimate(PREFIX, QUERIES, self.WORDS)
        assert (estimate.requests, estimate.tokens) == (len(QUERIES), self.tokens())
        assert estimate.basis == "counted by the server's tokenizer"
        assert {path for path, *_ in server.requests} == {"/tokenize"}

    def test_a_sample_stands_for_many(self, url: str) -> None:
        estimate = make(url).estimate(PREFIX, QUERIES * 10, self.WORDS)
        assert estimate.requests == 10 * len(QUERIES)
        assert estimate.tokens == pytest.approx(10 * self.tokens(), rel=0.05)
        assert estimate.basis.endswith("tokenizer on 24 of the prompts")

    def test_a_tokenizer_of_ones_own_asks_nobody(self, server: ModelServer, url: str) -> None:
        estimate = make(url, tokenizer="tiny_lm").estimate(PREFIX, QUERIES, self.WORDS)
        assert estimate.tokens == self.tokens()
        assert estimate.basis == "counted by the tokenizer of tiny_lm"
        assert server.requests == []

    def test_without_any(self, server: ModelServer, url: str) -> None:
        server.counts = False
        estimate = make(url).estimate("x" * 100, ["y" * 60, "z" * 20], self.WORDS)
        assert (estimate.requests, estimate.tokens) == (2, 70)
        assert "four characters a token" in estimate.basis
        assert len(server.requests) == 1
        nobody = make("http://127.0.0.1:1/v1").estimate("x" * 100, ["y" * 60], self.WORDS)
        assert "four characters a token" in nobody.basis

    def test_whole_words_take_a_request_each(self, server: ModelServer, url: str) -> None:
        estimate = make(url, label_rule="joint").estimate(PREFIX, QUERIES, self.WORDS)
        assert (estimate.requests, estimate.tokens) == (5 * len(QUERIES), 5 * self.tokens())

    def test_nothing_to_send(self, url: str) -> None:
        assert make(url).estimate(PREFIX, [], self.WORDS).tokens == 0


class TestWholeWords:
    WORDS = ("good", "quixotry", "zebra crossing", "zebra stripes")

    def test_agrees_with_transformers(self, url: str) -> None:
        scorer = make(url, label_rule="joint")
        expected = load_scorer("tiny_lm", device="cpu", label_rule="joint")
        np.testing.assert_allclose(
            scorer.score(PREFIX, QUERIES, self.WORDS),
            expected.score(PREFIX, QUERIES, self.WORDS),
            atol=1e-5,
        )
        assert scorer.settings == {"api": "completions", "label_rule": "joint"}

    def test_a_server_that_does_not_echo(self, server: ModelServer, url: str) -> None:
        server.echoes = False
        with pytest.raises(ScoringError) as caught:
            make(url, label_rule="joint").score(PREFIX, QUERIES, self.WORDS)
        for part in ("'good'", "no log-probabilities of the prompt", "use the rule first"):
            assert part in str(caught.value)

    @staticmethod
    def echo(*tokens: str, prompt_tokens: int | None = None) -> dict[str, Any]:
        values = [None, *(-float(k) for k in range(1, len(tokens)))]
        usage = {} if prompt_tokens is None else {"prompt_tokens": prompt_tokens}
        logprobs = {"tokens": list(tokens), "token_logprobs": values}
        return {"choices": [{"logprobs": logprobs}], "usage": usage}

    @pytest.mark.parametrize(
        ("tokens", "total"),
        [
            (("<s>", "A", ":", " yes", "x"), -3.0),
            (("<s>", "A", ":", " y", "es", "x"), -7.0),
            (("<s>", "A", ":", "\u2581", "yes", "x"), -7.0),  # the space by itself
            (("<s>", "A", ":", "\u0120yes", "x"), -3.0),  # raw tokens
            (("<s>", "A", ":", "yes", "x"), -3.0),  # a server that strips them
        ],
    )
    def test_forms_of_tokens(self, tokens: tuple[str, ...], total: float) -> None:
        assert word_log_probability(self.echo(*tokens), "A:", "yes") == total
        length = len(tokens) - 1
        assert word_log_probability(self.echo(*tokens, prompt_tokens=length), "A:", "yes") == total
        alone = self.echo(*tokens[:-1], prompt_tokens=length)
        assert word_log_probability(alone, "A:", "yes") == total

    @pytest.mark.parametrize(
        "answer",
        [
            {},
            {"choices": [{"logprobs": None}]},
            echo("<s>", "A", ": yes", "x"),  # the boundary lies within a token
            echo("<s>", "A", ":", "token_id:7", "x"),
            echo("x", prompt_tokens=4),
            echo("yes", "x"),  # the first token has no log-probability
        ],
    )
    def test_what_cannot_be_read(self, answer: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="prompt"):
            word_log_probability(answer, "A:", "yes")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"label_rule": "mean"}, "'mean': servers do not show .* transformers or vllm"),
            ({"label_rule": "jiont"}, "'jiont'.*'joint'"),
            ({"label_rule": "joint", "api": "chat"}, "'joint': api 'chat' .* rule first"),
        ],
    )
    def test_refusals(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            OpenAIScorer("x", **options)


class TestFaults:
    @pytest.mark.parametrize("status", [408, 429, 500, 503])
    def test_failures_that_pass(self, server: ModelServer, url: str, status: int) -> None:
        expected = make(url).score("", QUERIES[:4], TASK.label_words)
        server.faults = [(status, {}, "busy")] * 3
        probs = make(url).score("", QUERIES[:4], TASK.label_words)
        np.testing.assert_array_equal(probs, expected)
        assert server.faults == []

    def test_a_lost_connection_and_an_answer_that_is_no_json(
        self, server: ModelServer, url: str
    ) -> None:
        server.faults = [(0, {}, ""), (200, {}, "<html>")]
        assert make(url).score("", QUERIES[:1], TASK.label_words).shape == (1, 5)

    @pytest.mark.parametrize("form", ["seconds", "date"])
    def test_retry_after_holds_for_all(self, server: ModelServer, url: str, form: str) -> None:
        moment = email.utils.formatdate(time.time() + 1.6, usegmt=True)
        value = "0.5" if form == "seconds" else moment
        server.faults = [(429, {"Retry-After": value}, "slow down")]
        make(url, concurrency=1).score("", QUERIES[:2], TASK.label_words)
        times = [moment for *_, moment in server.requests]
        assert times[1] - times[0] >= 0.45
        assert len(times) == 3

    def test_a_spent_limit_is_waited_for(self, server: ModelServer, url: str) -> None:
        server.limits = {
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "300ms",
        }
        make(url, concurrency=1).score("", QUERIES[:2], TASK.label_words)
        times = [moment for *_, moment in server.requests]
        assert times[1] - times[0] >= 0.28

    @pytest.mark.parametrize(
        ("headers", "seconds"),
        [
            ({}, None),
            ({"Retry-After": "3"}, 3.0),
            ({"retry-after-ms": "250"}, 0.25),
            ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m30.5s"}, 90.5),
            ({"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "1m"}, None),
            ({"Retry-After": "soon", "x-ratelimit-remaining-requests": "0"}, 0.0),
        ],
    )
    def test_pauses(self, headers: dict[str, str], seconds: float | None) -> None:
        assert pause_asked(headers) == seconds

    def test_gives_up_in_one_line(self, server: ModelServer, url: str) -> None:
        server.faults = [(503, {}, "down for\nmaintenance")] * 100
        with pytest.raises(ScoringError, match="failed 3 times.*503: down for maintenance") as e:
            make(url, retries=2, concurrency=1).score("", QUERIES, TASK.label_words)
        assert "\n" not in str(e.value)
        assert len(server.requests) == 3

    def test_nobody_listens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_http, "FIRST_WAIT", 0.001)
        with pytest.raises(ScoringError, match="failed 2 times"):
            make("http://127.0.0.1:1/v1", retries=1).score("", QUERIES[:1], TASK.label_words)

    def test_other_refusals_are_not_repeated(self, server: ModelServer, url: str) -> None:
        server.faults = [(404, {}, "no such model")] * 9
        with pytest.raises(ScoringError, match="query 0: .* status 404: no such model"):
            make(url, concurrency=1).score("", QUERIES[:2], TASK.label_words)
        assert len(server.requests) == 1

    @pytest.mark.parametrize(
        "body", ["{}", '{"choices": []}', '{"choices": [{"logprobs": null}]}']
    )
    def test_no_log_probabilities(self, server: ModelServer, url: str, body: str) -> None:
        server.faults = [(200, {}, body)]
        with pytest.raises(ScoringError, match="gives no top log-probabilities"):
            make(url).score("", QUERIES[:1], TASK.label_words)


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
            scorer = StoredScorer(make(url), ShardStore(tmp_path))
            scorer.score("", QUERIES[:2], TASK.label_words)
            server.faults = [(400, {}, f"bad request with Bearer {SECRET}")]
            with pytest.raises(ScoringError) as refused:
                make(url).score("", QUERIES[:1], TASK.label_words)
        told = [caplog.text, str(refused.value), repr(scorer), str(vars(scorer._scorer))]
        told.append(repr(make(url)._server))
        told.append(str(score_settings(scorer, "", TASK.label_words)))
        told += [p.read_bytes().decode("latin-1") for p in tmp_path.rglob("*") if p.is_file()]
        assert not any(SECRET in text for text in told)

    def test_a_wrong_key(
        self, server: ModelServer, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.key = SECRET
        monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong")
        with pytest.raises(ScoringError, match="refuses the API key.*OPENAI_API_KEY") as caught:
            make(url).score("", QUERIES[:1], TASK.label_words)
        assert "sk-wrong" not in str(caught.value)


class TestMissing:
    # Few tokens are shown, so that some labels are missing from some answers.
    def test_error_is_the_default(self, url: str) -> None:
        with pytest.raises(ScoringError, match="label words .* are not among the 2 tokens"):
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
        assert f"of {len(queries)} answers" in scorer.report()[0]

    def test_no_label_at_all(self, url: str) -> None:
        with pytest.raises(ScoringError, match="query 0: none of the label words"):
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"missing": "bond"}, "missing 'bond'.*'bound'"),
        ({"api": "chats"}, "api 'chats'.*'chat'"),
        ({"concurrency": 0}, "concurrency 0"),
        ({"base_url": "localhost:8000"}, "base_url 'localhost:8000'"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpenAIScorer("x", **options)


def test_a_password_in_the_address_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        OpenAIScorer("x", base_url="http://me:hidden@host/v1")
    assert "hidden" not in str(caught.value)


def test_missing_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(MissingDependencyError, match="pip install aiohttp"):
        OpenAIScorer("x")


def test_closed(url: str) -> None:
    scorer = make(url)
    scorer.close()
    with pytest.raises(ScoringError, match="closed"):
        scorer.score("", QUERIES, TASK.label_words)
