"""The store of scored prompts: it keeps the contract of the scorers, and asks once."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dcs.errors import ConfigError, DCSError
from dcs.scoring import Scorer, StoredScorer, score_settings
from dcs.scoring.cache import ShardGroup, group_key, query_hash
from tests.dcs.refusals import refuses
from tests.dcs.scoring.clerk import Clerk
from tests.dcs.scoring.test_contract import ScorerContract

WORDS = ("even", "odd", "other")
QUERIES = [f"number {k}" for k in range(50)]


#: What the clerk says to them.
PROBS = Clerk.probs("p ", QUERIES, len(WORDS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def ask(
    folder: Path, clerk: Clerk, queries: Sequence[str] = QUERIES, steps: list[int] | None = None
) -> NDArray[np.float64]:
    scorer = StoredScorer(clerk, folder, shard_size=8)
    return scorer.score("p ", queries, WORDS, progress=None if steps is None else steps.append)


class TestContract(ScorerContract):
    @pytest.fixture
    def scorer(self, tiny_scorer: Scorer, folder: Path) -> Scorer:
        return StoredScorer(tiny_scorer, folder, shard_size=10)


class TestScoring:
    def test_no_prompt_is_scored_twice(self, folder: Path) -> None:
        first, more, again = Clerk(), Clerk(), Clerk()
        ask(folder, first, QUERIES[:21])
        steps: list[int] = []
        probs = ask(folder, more, steps=steps)
        np.testing.assert_array_equal(probs, PROBS)
        np.testing.assert_array_equal(ask(folder, again, QUERIES[::-1]), probs[::-1])
        assert first.asked + more.asked == QUERIES
        assert again.asked == []
        assert sum(steps) == len(QUERIES)
        assert min(steps) > 0

    def test_a_query_that_occurs_twice_is_scored_once(self, folder: Path) -> None:
        clerk, steps = Clerk(), list[int]()
        probs = ask(folder, clerk, QUERIES[:10] * 3, steps)
        assert clerk.asked == QUERIES[:10]
        assert sum(steps) == 30
        np.testing.assert_array_equal(probs[:10], probs[20:])

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("revision", "r8"),
            ("model", "slide rule"),
            ("version", "2"),
            ("name", "other"),
            ("settings", {"dtype": "float32"}),
        ],
    )
    def test_another_scorer_uses_no_old_shard(self, folder: Path, name: str, value: Any) -> None:
        ask(folder, Clerk())
        other = Clerk()
        setattr(other, name, value)
        ask(folder, other)
        assert other.asked == QUERIES

    def test_another_prompt_uses_no_old_shard(self, folder: Path) -> None:
        ask(folder, Clerk())
        for prefix, words in (("q ", WORDS), ("p ", WORDS[::-1])):
            clerk = Clerk()
            StoredScorer(clerk, folder).score(prefix, QUERIES, words)
            assert clerk.asked == QUERIES

    def test_a_model_folder_goes_by_its_content(self) -> None:
        here, there = Clerk(), Clerk()
        here.revision = there.revision = "sha256:00ff"  # type: ignore[misc]
        there.model = "elsewhere/abacus"  # type: ignore[misc]
        keys = {group_key(score_settings(clerk, "", WORDS)) for clerk in (here, there)}
        assert len(keys) == 1


class TestProcesses:
    CODE = """
import sys
from pathlib import Path
from tests.dcs.scoring.clerk import Clerk
from tests.dcs.scoring.test_cache import ask
ask(Path(sys.argv[1]), Clerk(die_after=int(sys.argv[2])))
"""

    @pytest.mark.parametrize("call", [1, 4])
    def test_a_killed_run_goes_on_at_the_shard(
        self, folder: Path, tmp_path: Path, call: int
    ) -> None:
        command = [sys.executable, "-c", self.CODE, str(folder), str(call)]
        root = Path(__file__).parents[3]
        assert subprocess.run(command, cwd=root, check=False).returncode == -signal.SIGKILL
        clerk = Clerk()
        probs = ask(folder, clerk)
        assert clerk.asked == QUERIES[8 * (call - 1) :]
        np.testing.assert_array_equal(probs, PROBS)
        ask(tmp_path / "undisturbed", Clerk())
        assert content(folder) == content(tmp_path / "undisturbed")

    def test_at_once_they_share_the_work(self, folder: Path) -> None:
        context = multiprocessing.get_context("fork")
        start, answers = context.Event(), context.Queue()
        workers = [context.Process(target=work, args=(folder, start, answers)) for _ in range(3)]
        for worker in workers:
            worker.start()
        start.set()
        results = [answers.get(timeout=60) for _ in workers]
        for worker in workers:
            worker.join()
        assert sorted(sum((asked for asked, _ in results), [])) == sorted(QUERIES)
        assert {probs for _, probs in results} == {PROBS.tobytes()}

    def test_a_shorter_run_waits_for_a_longer_one(self, folder: Path) -> None:
        # Its shard is a part of the long run's first.
        group = ShardGroup.under(folder, {"label_words": list(WORDS)})
        hashes = [query_hash(query) for query in QUERIES[:8]]
        with group.lock(hashes, wait=True) as held, group.lock(hashes[:3], wait=False) as other:
            assert (held, other) == (True, False)
        with group.lock(hashes[:3], wait=False) as held:
            assert held


def content(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def work(folder: Path, start: Any, answers: Any) -> None:
    start.wait()
    clerk = Clerk(pause=0.02)
    probs = ask(folder, clerk)
    answers.put((clerk.asked, probs.tobytes()))


class TestDamage:
    @given(data=st.data())
    def test_a_damaged_shard_is_scored_again(self, data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            expected = ask(folder, Clerk(), QUERIES[:8])
            (shard,) = folder.rglob("*.npz")
            whole = shard.read_bytes()
            start = data.draw(st.integers(0, len(whole) - 1))
            shard.write_bytes(whole[:start] + data.draw(st.binary(max_size=40)))
            clerk = Clerk()
            np.testing.assert_array_equal(ask(folder, clerk, QUERIES[:8]), expected)
            assert clerk.asked == QUERIES[:8]
            ask(folder, clerk, QUERIES[:8])
            assert clerk.asked == QUERIES[:8]

    def test_a_store_is_a_folder_that_can_be_written_to(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for store in ("s3://bucket/folder", tmp_path / "file"):
            refuses(ConfigError, StoredScorer, Clerk(), store, names=[store])
        refuses(DCSError, ask, tmp_path / "file" / "store", Clerk(), names=["file"])
