"""The benchmark of scoring, at a shape so small that its figures mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny_lm", "llama2-toy"])
def test_both_ways_agree_and_are_timed(model, tmp_path):
    command = ["benchmarks/scoring.py", "--model", model, "--prompts", "12", "--repeats", "1"]
    command += ["--threads", "1", "--device", "cpu", "--peak", "1", "--json", tmp_path / "f.json"]
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures["largest_difference"] < 1e-5
    assert figures["prompts"] == 12
    ways = ["published way", "dcs, transformers", "dcs, prefix not reused"]
    for way in ways:
        assert figures[way]["prompts_per_second"] > 0
        # Operations over seconds over a peak of 1 TFLOP/s: more than none, less than a CPU has.
        assert 0 < figures[way]["share_of_peak"] < 10
    assert f"{figures['parameters']}" in answer.stdout
