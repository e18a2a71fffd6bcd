"""Numbers of trials are paired by table and split; parameters count if they exceed a dummy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import importances, trials


def test_changes_are_paired_by_table_and_split(tmp_path: Path) -> None:
    about = {"ratio": 3 / 7, "judged": 26, "seconds": 1.0, "accuracy": 60.0, "cobias": 5.0}
    lines = []
    for table, gain in (("a", 1.0), ("b", 0.0)):
        for seed in (0, 1):
            for number in trials.TRIALS:
                for prefer in trials.PREFERENCES:
                    names = {"table": table, "texts": table, "seed": seed, "prefer": prefer}
                    score = 50.0 + 10.0 * seed + (gain if number == 256 else 0.0)
                    lines.append(json.dumps({**about, **names, "trials": number, "score": score}))
    (file := tmp_path / "trials.jsonl").write_text("\n".join(lines) + "\n")
    *_, few, many = trials.table(file).splitlines()
    assert "| +0.00 ± 0.00 | 0 / 4 / 0 | 0 / 0 |" in few
    assert "| +0.50 ± 0.50 | 2 / 2 / 0 | 1 / 0 |" in many


def test_a_parameter_counts_that_exceeds_the_dummy_reliably(tmp_path: Path) -> None:
    lines = []
    for seed in range(4):
        shares = {"beta": 0.4 + 0.01 * seed, "tau": 0.1 * (-1) ** seed + 0.1, "dummy": 0.1}
        about = {"sweep": "s", "table": "t", "seed": seed}
        lines.append(json.dumps({**about, "importances": {"accuracy": shares}}))
    (file := tmp_path / "importances.jsonl").write_text("\n".join(lines) + "\n")
    found = importances.exceeding(file).set_index("parameter")
    assert found["exceeds"].to_dict() == {"beta": True, "tau": False}
    assert found.loc["beta", "share"] == pytest.approx(0.415)
