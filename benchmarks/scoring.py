"""Measure prompts scored per second, compared with the published implementation.

    python benchmarks/scoring.py                          # tiny_lm, here
    python benchmarks/scoring.py --gpu                    # random weights of a 7B shape, and vLLM;
                                                          # skipped without a GPU
    python benchmarks/scoring.py --vllm                   # vLLM too, if it is installed

The published implementation generates one token for a padded batch, then runs the padded batch a
second time, and copies a softmax over the whole vocabulary to the CPU. Both use the same model,
prompts and process, and must agree in the class probabilities.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dcs.prompting.files import get_task
from dcs.prompting.tasks import parse_shots, render_prefix, render_query, select_demonstrations
from dcs.scoring import load_scorer, resolve_model
from dcs.scoring.models import LoadedModel
from dcs.scoring.transformers import TransformersScorer

# hidden size, intermediate size, layers, heads, key-value heads
SHAPES = {
    "llama-1b": (2048, 5632, 22, 32, 4),
    "llama2-7b": (4096, 11008, 32, 32, 32),
    "llama2-13b": (5120, 13824, 40, 40, 40),
    "llama2-toy": (64, 172, 2, 2, 2),  # for a trial without a GPU
}
# Dense bfloat16 matrix peak in TFLOP/s, from the vendors' data sheets.
PEAKS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "4090": 165.0}


def load(name: str, device: str) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    folder = resolve_model("tiny_lm" if name in SHAPES else name).location
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.padding_side = "left"
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    if name not in SHAPES:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
        return model.eval(), tokenizer
    hidden, intermediate, layers, heads, kv_heads = SHAPES[name]
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval(), tokenizer


def published_way(
    model: Any, tokenizer: Any, prompts: Sequence[str], words: Sequence[str], batch_size: int
) -> np.ndarray[Any, Any]:
    """Score like the published implementation."""
    import torch

    ids = [tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in words]
    rows = []
    with torch.inference_mode():
        for start in range(0, len(prompts), batch_size):
            batch = tokenizer(
                list(prompts[start : start + batch_size]), padding=True, return_tensors="pt"
            )
            inputs = {k: batch[k].to(model.device) for k in ("input_ids", "attention_mask")}
            model.generate(**inputs, max_new_tokens=1, do_sample=False, pad_token_id=0)
            # With left padding, explicit positions give the same results as without padding.
            positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
            logits = model(**inputs, position_ids=positions).logits
            softmax = torch.softmax(logits.float(), dim=-1).cpu().numpy()[:, -1]
            rows.append(np.stack([softmax[:, word].mean(axis=1) for word in ids], axis=1))
    probs = np.concatenate(rows)
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))


def cpu_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def seconds(
    work: Callable[[], Any],
    repeats: int,
    synchronise: Callable[[], None],
    clock: Callable[[], float],
) -> float:
    times = []
    for _ in range(repeats):
        synchronise()
        start = clock()
        work()
        synchronise()
        times.append(clock() - start)
    return statistics.median(times)


def operations(model: Any) -> tuple[float, float]:
    """Return the matrix product operations per token and per output: two per weight.

    Embedding lookups and attention over the context are not counted.
    """
    embedding = model.get_input_embeddings().weight.numel()
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    output = model.get_output_embeddings().weight.numel()
    layers = sum(p.numel() for p in model.parameters()) - embedding - (0 if tied else output)
    return 2.0 * layers, 2.0 * output


def main() -> None:
    parser = argparse.ArgumentParser(description="Prompts scored per second.")
    parser.add_argument("--peak", type=float, help="matrix peak in TFLOP/s, if unknown")
    parser.add_argument("--gpu", action="store_true", help="only on a GPU: llama2-7b, and vLLM")
    parser.add_argument("--model", help=f"model, or one of {', '.join(SHAPES)}; default tiny_lm")
    parser.add_argument("--task", default="helpdesk")
    parser.add_argument("--data")
    parser.add_argument("--shots", default="N")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16, help="of the published way")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="CPU threads of torch")
    parser.add_argument("--device")
    parser.add_argument("--vllm", action="store_true", help="measure vLLM too")
    parser.add_argument("--json", help="output file for the results")
    options = parser.parse_args()

    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.startswith("cuda")
    if options.gpu and not on_gpu:
        print("skipped: torch finds no GPU on this machine")
        return
    options.model = options.model or ("llama2-7b" if options.gpu else "tiny_lm")
    task = get_task(options.task, options.data)
    shown = select_demonstrations(task, parse_shots(options.shots), seed=0)
    prefix = render_prefix(task, shown)
    queries = [render_query(task, e.text) for e in task.examples("test")[: options.prompts]]
    prompts = [f"{prefix}{query}" for query in queries]

    model, tokenizer = load(options.model, device)
    loaded = LoadedModel(model, tokenizer, options.model)
    scorer = TransformersScorer(loaded)
    lengths = [len(ids) for ids in tokenizer(prompts)["input_ids"]]
    shared = len(tokenizer(str(prefix))["input_ids"]) - 1
    parameters, weights = sum(p.numel() for p in model.parameters()), operations(model)
    synchronise = torch.cuda.synchronize if on_gpu else (lambda: None)
    # CPU time of a single thread, which other load on the machine hardly affects.
    own_time = not on_gpu and torch.get_num_threads() == 1
    clock = time.process_time if own_time else time.perf_counter
    where = torch.cuda.get_device_name() if on_gpu else cpu_name()
    peak = options.peak or next((v for k, v in PEAKS.items() if on_gpu and k in where), None)

    def ours() -> np.ndarray[Any, Any]:
        return scorer.score(prefix, queries, task.label_words)

    def published() -> np.ndarray[Any, Any]:
        return published_way(model, tokenizer, prompts, task.label_words, options.batch_size)

    difference = float(np.abs(ours() - published()).max())  # also warms both up
    run_tokens = shared + sum(length - shared for length in lengths)
    # Function, number of tokens through the layers, number through the output matrix.
    ways: dict[str, tuple[Callable[[], Any], int, int]] = {
        "published way": (published, 2 * sum(lengths), sum(lengths) + len(prompts)),
        "dcs, transformers": (ours, run_tokens, len(prompts)),
    }
    results: dict[str, Any] = {
        "machine": f"{where}, {os.cpu_count()} CPUs, {torch.get_num_threads()} torch threads",
        "torch": torch.__version__,
        "model": options.model,
        "parameters": parameters,
        "prompts": len(prompts),
        "tokens_per_prompt": sum(lengths) / len(lengths),
        "shared_tokens": shared,
        "largest_difference": difference,
        "clock": "CPU time" if own_time else "elapsed time",
    }
    print(json.dumps(results, indent=1))

    def measure(name: str, work: Callable[[], Any], tokens: int, outputs: int) -> None:
        taken = seconds(work, options.repeats, synchronise, clock)
        rate = len(prompts) / taken
        base = results.get("published way", {"prompts_per_second": rate})["prompts_per_second"]
        figures = {
            "prompts_per_second": rate,
            "prompt_tokens_per_second": sum(lengths) / taken,
            "times_the_published_way": rate / base,
        }
        if peak:
            done = weights[0] * tokens + weights[1] * outputs
            figures["share_of_peak"] = done / taken / (peak * 1e12)
        results[name] = figures
        shares = f", {100 * figures['share_of_peak']:.0f} % of the matrix peak" if peak else ""
        print(
            f"{name:24s} {rate:9.1f} prompts/s {figures['prompt_tokens_per_second']:11.0f} "
            f"tokens/s {rate / base:6.2f}x{shares}"
        )

    for name, way in ways.items():
        measure(name, *way)
    if options.vllm or (options.gpu and importlib.util.find_spec("vllm")):
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        name, expected = options.model, ours()
        with tempfile.TemporaryDirectory() as folder:
            if name in SHAPES:
                name = folder
                model.save_pretrained(name)
                tokenizer.save_pretrained(name)
            # GPU memory is too small for two copies of large weights.
            scorer.close()
            del model, loaded
            ways.clear()
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
            engine = load_scorer(name, engine="vllm", max_length=4096)

        def vllm() -> np.ndarray[Any, Any]:
            # The cache would hold whole prompts of the previous run, not only the shared prefix.
            engine._engine.reset_prefix_cache()  # noqa: SLF001 (the attribute is ours)
            return engine.score(prefix, queries, task.label_words)

        results["vllm_difference"] = float(np.abs(vllm() - expected).max())
        measure("dcs, vllm", vllm, run_tokens, len(prompts))
    elif options.gpu:
        print("dcs, vllm: skipped, vllm is not installed")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
