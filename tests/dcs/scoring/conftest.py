from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from dcs.scoring import Scorer, load_scorer, resolve_model


@pytest.fixture(scope="session", autouse=True)
def _import_engine() -> None:
    # Third-party warnings of the import are not ours to mend.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import transformers  # noqa: F401

        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_scorer() -> Scorer:
    return load_scorer("tiny_lm", device="cpu")


@pytest.fixture(
    scope="session", params=["learned positions", "sliding window", "recurrent", "mixed layers"]
)
def other_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an untrained model of another architecture, without a start token."""
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GPT2Config,
        Lfm2Config,
        MistralConfig,
        RwkvConfig,
    )

    folder = tmp_path_factory.mktemp("models") / request.param.replace(" ", "_")
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny_lm").location)
    tokenizer.backend_tokenizer.post_processor = None
    size = len(tokenizer)
    config = {
        "learned positions": GPT2Config(
            vocab_size=size, n_positions=256, n_embd=32, n_layer=2, n_head=2,
            initializer_range=0.4, bos_token_id=0, eos_token_id=1,
        ),
        # The window is shorter than the prompts.
        "sliding window": MistralConfig(
            vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, sliding_window=16,
            max_position_embeddings=256, initializer_range=0.4,
        ),
        # It ignores masks.
        "recurrent": RwkvConfig(
            vocab_size=size, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2,
            context_length=256, bos_token_id=0, eos_token_id=1,
        ),
        "mixed layers": Lfm2Config(
            vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, layer_types=["conv", "full_attention"],
            max_position_embeddings=256, initializer_range=0.4,
        ),
    }[request.param]  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
