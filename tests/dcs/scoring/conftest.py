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
    scope="session",
    params=["learned positions", "padding", "sliding window", "recurrent", "mixed layers"],
)
def other_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an untrained model of another architecture, without a start token."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("models") / request.param.replace(" ", "_")
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny_lm").location)
    tokenizer.backend_tokenizer.post_processor = None
    size = {"vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2}
    attention = {"intermediate_size": 64, "num_attention_heads": 2, "initializer_range": 0.4}
    grouped = attention | {"num_key_value_heads": 1, "max_position_embeddings": 256}
    special = {"bos_token_id": 0, "eos_token_id": 1}
    (frequent,) = tokenizer.encode(".", add_special_tokens=False)
    name, options = {
        "learned positions": ("GPT2", attention | special | {"n_positions": 256}),
        # It does not count padding tokens as positions.
        "padding": ("Roberta", attention | {"is_decoder": True, "pad_token_id": frequent}),
        # The window is shorter than the prompts.
        "sliding window": ("Mistral", grouped | {"sliding_window": 16}),
        # It ignores masks.
        "recurrent": ("Rwkv", special | {"attention_hidden_size": 32}),
        "mixed layers": ("Lfm2", grouped | {"layer_types": ["conv", "full_attention"]}),
    }[request.param]
    config = getattr(transformers, f"{name}Config")(**size, **options)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
