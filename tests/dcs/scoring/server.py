"""A local server of the OpenAI protocol that really computes next-token probabilities."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from dcs.scoring import resolve_model
from tests.servers import serving


class ModelServer:
    """Serves tiny_lm; `faults` are what it answers first: (status, headers, body).

    A body of parts is sent as it comes, without its length; a status below 0 sends it alone.
    """

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch = torch
        folder = resolve_model("tiny_lm").location
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        known = len(self.tokenizer)
        size = self.model.config.vocab_size
        # The model may have room for more tokens than its tokenizer has.
        self.texts = [self.tokenizer.decode([t]) if t < known else f"<{t}>" for t in range(size)]
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.faults: list[tuple[int, dict[str, str], str | Iterable[bytes]]] = []
        #: What is answered to some prompts for ever.
        self.sick: dict[str, tuple[int, dict[str, str], str]] = {}
        self.sent = 0
        self.requests: list[tuple[str, dict[str, str], dict[str, Any], float]] = []
        self.key = ""
        #: The paths that exist, whether asked tokens are returned, and how many likely ones are.
        self.paths = ("/v1/completions", "/v1/chat/completions")
        self.exact = False
        self.most = 10_000
        #: What its tokenizer puts around texts, and the name that a limit of tokens must have.
        self.opening: list[int] = []
        self.ending: list[int] = []
        self.limit = "max_tokens"
        #: What samples say, in turn, and how many a request may ask for.
        self.says: list[str] = []
        self.most_samples = 100
        self.pause = 0.0
        self.active = self.most_active = 0

    def encode(self, prompt: Any, *, special: bool = True) -> list[int]:
        """Return the tokens of a text; those of messages are the tokens of their contents."""
        if isinstance(prompt, list) and isinstance(prompt[0], dict):
            prompt = "".join(message["content"] for message in prompt)
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=special)["input_ids"]
        return [*self.opening, *ids, *self.ending] if special else ids

    def all_logs(self, ids: list[int]) -> Any:
        with self.lock, self.torch.inference_mode():
            logits = self.model(self.torch.tensor([ids])).logits[0, -1].double()
        return logits.log_softmax(-1)

    def next_tokens(self, prompt: Any, top: int) -> dict[str, float] | str:
        ids = self.encode(prompt)
        limit = self.model.config.max_position_embeddings
        if len(ids) > limit:
            return f"its prompt has {len(ids)} tokens, the model reads {limit}"
        values, tokens = self.all_logs(ids).topk(top)
        shown: dict[str, float] = {}
        for value, token in zip(values.tolist(), tokens.tolist(), strict=True):
            shown.setdefault(self.texts[token], value)
        return shown

    def answer(
        self, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, dict[str, str], str | Iterable[bytes]]:
        self.requests.append((path, headers, body, time.monotonic()))
        if self.faults:
            return self.faults.pop(0)
        if self.limit not in body:
            told = {"error": {"message": f"use {self.limit!r} instead"}}
            return 400, {}, json.dumps(told)
        if (prompt := str(body.get("prompt"))) in self.sick:
            return self.sick[prompt]
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            given = headers.get("authorization", "")
            return 401, {}, json.dumps({"error": {"message": f"wrong key {given}"}})
        time.sleep(self.pause)
        if path not in self.paths:
            return 404, {}, json.dumps({"detail": "Not Found"})
        chat = path.endswith("/chat/completions")
        given = body["messages" if chat else "prompt"]
        if self.says and not body.get("logprobs"):
            return self.samples(body, chat)
        if self.exact and body.get("return_token_ids"):
            return self.exactly(body, given, chat)
        top = body["top_logprobs" if chat else "logprobs"]
        if top > self.most:
            return 400, {}, json.dumps({"error": {"message": f"at most {self.most}"}})
        shown = self.next_tokens(given, top)
        if isinstance(shown, str):
            return 400, {}, json.dumps({"error": {"message": shown}})
        choice = {"index": 0, "logprobs": _written(shown, chat)}
        return 200, {}, json.dumps({"choices": [choice]})

    def samples(self, body: dict[str, Any], chat: bool) -> tuple[int, dict[str, str], str]:
        count = body.get("n", 1)
        if count > self.most_samples:
            return 400, {}, json.dumps({"error": {"message": "n is too large"}})
        texts = [self.says[(len(self.requests) + k) % len(self.says)] for k in range(count)]
        said = [{"message": {"content": t}} if chat else {"text": t} for t in texts]
        return 200, {}, json.dumps({"choices": said})

    def exactly(
        self, body: dict[str, Any], given: Any, chat: bool
    ) -> tuple[int, dict[str, str], str]:
        """Answer as vLLM's own server does: with the tokens asked for, and those of prompts."""
        batch = not chat and isinstance(given, list)
        choices = []
        for index, prompt in enumerate(given if batch else [given]):
            ids = self.encode(prompt, special=body.get("add_special_tokens", True))
            choice: dict[str, Any] = {"index": index, "prompt_token_ids": ids}
            if wanted := body.get("logprob_token_ids"):
                logs = self.all_logs(ids)[wanted].tolist()
                names = (f"token_id:{token}" for token in wanted)
                choice["logprobs"] = _written(dict(zip(names, logs, strict=True)), chat)
            choices.append(choice)
        answer = {"choices": choices[::-1]}
        if chat:
            answer["prompt_token_ids"] = choices[0].pop("prompt_token_ids")
        return 200, {}, json.dumps(answer)

    @contextmanager
    def serving(self) -> Iterator[str]:
        with serving(self.respond) as address:
            self.url = f"{address}/v1"
            yield self.url

    def respond(self, asked: BaseHTTPRequestHandler, sent: bytes) -> None:
        with self.lock:
            self.active += 1
            self.most_active = max(self.most_active, self.active)
        known = {name.lower(): value for name, value in asked.headers.items()}
        status, headers, text = self.answer(asked.path, known, json.loads(sent))
        with self.lock:
            self.active -= 1
        if status == 0:  # hang up without an answer
            asked.close_connection = True
            return
        parts: Iterable[bytes] = text
        if isinstance(text, str):
            parts = [text.encode()]
            headers = {"Content-Length": str(len(parts[0])), **headers}
        else:
            asked.close_connection = True
        # A client that has given up does not wait for the rest.
        with suppress(ConnectionError):
            if status > 0:
                asked.send_response(status)
                headers = {"Content-Type": "application/json", **headers}
                for name, value in headers.items():
                    asked.send_header(name, value)
                asked.end_headers()
            for part in parts:
                asked.wfile.write(part)
                self.sent += len(part)


def _written(shown: dict[str, float], chat: bool) -> dict[str, Any]:
    if not chat:
        return {"top_logprobs": [shown]}
    entries = [{"token": token, "logprob": value} for token, value in shown.items()]
    return {"content": [{"top_logprobs": entries}]}
