"""Train the demonstration model ``tiny_lm`` from scratch, on one CPU core.

    python scripts/train_tiny_lm.py --output dcs/assets/tiny_lm

A Llama of under a million parameters with its own byte-level BPE tokenizer, trained on
generated classification episodes (see tiny_lm_episodes.py), with fixed seeds.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tiny_lm_card import write_card
from tiny_lm_episodes import draw_episode, reserved_texts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dcs.seeds import derive_generator, derive_seed

logger = logging.getLogger("train_tiny_lm")

VOCABULARY = 2048
LENGTH = 384  # tokens per training sequence
BATCH = 24
LANGUAGE_WEIGHT = 0.3  # loss weight of all tokens other than label words
SHARE_OF_POSITIONS = 0.33  # share of those other tokens in the loss of a step
NOT_A_LABEL = -100


def train_tokenizer(seed: int, reserved: frozenset[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, which covers any text."""
    rng = derive_generator(seed, "tokenizer")
    corpus = [draw_episode(rng, reserved, length=10).text for _ in range(6000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def make_model(seed: int) -> LlamaForCausalLM:
    """Return the untrained model."""
    torch.manual_seed(derive_seed(seed, "weights"))
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
            dtype="float32",
        )
    )


class Batches:
    """Draw batches of token ids and the targets at the label words."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        rng: np.random.Generator,
        reserved: frozenset[str],
    ) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._rng = rng
        self._reserved = reserved

    def draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids ``[BATCH, LENGTH + 1]`` and label targets ``[BATCH, LENGTH]``."""
        episodes = [draw_episode(self._rng, self._reserved, length=20) for _ in range(BATCH)]
        ids = np.zeros((BATCH, LENGTH + 1), dtype=np.int64)
        targets = np.full((BATCH, LENGTH), NOT_A_LABEL, dtype=np.int64)
        encodings = self._tokenizer.encode_batch([episode.text for episode in episodes])
        for row, (episode, encoding) in enumerate(zip(episodes, encodings, strict=True)):
            ids[row] = encoding.ids[: LENGTH + 1]
            starts = [start for start, _ in encoding.offsets[: LENGTH + 1]]
            for first, last in episode.spans:
                for position in range(*np.searchsorted(starts, [first, last])):
                    targets[row, position - 1] = ids[row, position]
        return torch.from_numpy(ids), torch.from_numpy(targets)


def train(
    model: LlamaForCausalLM,
    batches: Batches,
    *,
    steps: int,
    rate: float,
    seed: int,
    checkpoint: Callable[[], None],
) -> None:
    """Train in place with AdamW, warm-up and cosine decay."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.05
    )
    chooser = torch.Generator().manual_seed(derive_seed(seed, "positions"))
    model.train()
    started, losses, hits = time.monotonic(), [], []
    for step in range(steps):
        warm, done = min(1.0, (step + 1) / 100), step / steps
        for group in optimizer.param_groups:
            group["lr"] = rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        ids, targets = batches.draw()
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        is_label = targets != NOT_A_LABEL
        logits = model.lm_head(hidden[is_label])
        label_loss = torch.nn.functional.cross_entropy(logits, targets[is_label])
        seen = (torch.rand(targets.shape, generator=chooser) < SHARE_OF_POSITIONS) & ~is_label
        language_loss = torch.nn.functional.cross_entropy(
            model.lm_head(hidden[seen]), ids[:, 1:][seen]
        )
        optimizer.zero_grad(set_to_none=True)
        (label_loss + LANGUAGE_WEIGHT * language_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(label_loss.detach()))
        hits.append(float((logits.argmax(-1) == targets[is_label]).float().mean()))
        if (step + 1) % 50 == 0:
            logger.info(
                "step %d: label loss %.3f, label accuracy %.3f, language loss %.3f, %.0f s",
                step + 1,
                np.mean(losses[-50:]),
                np.mean(hits[-50:]),
                float(language_loss.detach()),
                time.monotonic() - started,
            )
        if (step + 1) % 250 == 0:
            checkpoint()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save model and tokenizer in the Transformers format."""
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def main(arguments: list[str]) -> None:
    """Train and save the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="model folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1300)
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)

    started = time.monotonic()
    reserved = reserved_texts()
    tokenizer = train_tokenizer(options.seed, reserved)
    model = make_model(options.seed)
    logger.info(
        "%d parameters, %d tokens", sum(p.numel() for p in model.parameters()), len(tokenizer)
    )
    batches = Batches(tokenizer, derive_generator(options.seed, "episodes"), reserved)
    train(
        model,
        batches,
        steps=options.steps,
        rate=options.rate,
        seed=options.seed,
        checkpoint=lambda: save(model, tokenizer, options.output),
    )
    save(model, tokenizer, options.output)
    record = {
        "seed": options.seed,
        "steps": options.steps,
        "rate": options.rate,
        "seconds": round(time.monotonic() - started),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    (options.output / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    logger.info("%s", record)
    write_card(options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
