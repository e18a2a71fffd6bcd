"""The store of scored prompts: it keeps the contract of the scorers, and asks once."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dcs.errors import ConfigError
from dcs.io import content_key
from dcs.scoring import StoredScorer
from dcs.scoring.base import RowsError, scored_rows
from dcs.scoring.cache import score_settings
from tests.dcs.refusals import refuses
from tests.dcs.scoring.clerk import Clerk

WORDS = ("even", "odd", "other")
QUERIES = [f"number {k}" for k in range(50)]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcs.scoring.cache.SHARD_SIZE", 8)


def ask(
    folder: Path, clerk: Clerk, queries: Sequence[str] = QUERIES, steps: list[int] | None = None
) -> NDArray[np.float64]:
    scorer = StoredScorer(clerk, folder)
    return scorer.score("p ", queries, WORDS, progress=None if steps is None else steps.append)


@given(st.lists(st.lists(st.sampled_from(QUERIES[:20]), max_size=40), max_size=4))
def test_no_prompt_is_scored_twice(batches: list[list[str]]) -> None:
    clerk = Clerk()
    with tempfile.TemporaryDirectory() as name:
        for batch in batches:
            steps: list[int] = []
            probs = ask(Path(name), clerk, batch, steps)
            np.testing.assert_array_equal(probs, Clerk.probs("p ", batch, len(WORDS)))
            assert sum(steps) == len(batch)
            assert min(steps, default=0) >= 0
    assert sorted(clerk.asked) == sorted({*sum(batches, [])})


@given(st.sets(st.sampled_from(QUERIES), min_size=1), st.lists(st.sampled_from(QUERIES)))
def test_prompts_that_fail_are_asked_again(bad: set[str], queries: list[str]) -> None:
    class Choosy(Clerk):
        def score(self, prefix: Any, queries: Sequence[str], *args: Any, **options: Any) -> Any:
            probs = super().score(prefix, queries, *args, **options)
            reasons = {row: f"no {query}" for row, query in enumerate(queries) if query in bad}
            probs[[*reasons]] = np.nan
            return scored_rows(probs, reasons)

    queries = [*queries, *bad]
    expected = Clerk.probs("p ", queries, len(WORDS))
    with tempfile.TemporaryDirectory() as name:
        steps: list[int] = []
        with pytest.raises(RowsError) as caught:
            ask(Path(name), Choosy(), queries, steps)
        failed = {row: f"no {query}" for row, query in enumerate(queries) if query in bad}
        assert (caught.value.reasons, sum(steps)) == (failed, len(queries))
        good = [row for row in range(len(queries)) if row not in failed]
        np.testing.assert_array_equal(caught.value.probs[good], expected[good])
        clerk = Clerk()
        np.testing.assert_array_equal(ask(Path(name), clerk, queries), expected)
        assert sorted(clerk.asked) == sorted(bad)


def test_what_decides_the_numbers_decides_which_shards_are_used() -> None:
    def key(prefix: str = "p ", words: Sequence[str] = WORDS, **changed: object) -> str:
        clerk = Clerk()
        for name, value in changed.items():
            setattr(clerk, name, value)
        return content_key(score_settings(clerk, prefix, words))

    names = ("revision", "model", "version", "name")
    changes = [{}, {"settings": {"dtype": "float32"}}, *({name: "other"} for name in names)]
    keys = [*(key(**change) for change in changes), key("q "), key(words=WORDS[::-1])]
    assert len({*keys}) == len(keys)
    # A model folder goes by its content.
    content = {"revision": "sha256:00ff"}
    assert key(**content) == key(**content, model="elsewhere/abacus")


@pytest.mark.parametrize("call", [1, 4])
def test_a_killed_run_goes_on_at_the_shard(tmp_path: Path, call: int) -> None:
    folder, undisturbed = tmp_path / "store", tmp_path / "undisturbed"
    fork = multiprocessing.get_context("fork")
    killed = fork.Process(target=ask, args=(folder, Clerk(die_after=call)))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    clerk = Clerk()
    probs = ask(folder, clerk)
    assert clerk.asked == QUERIES[8 * (call - 1) :]
    np.testing.assert_array_equal(probs, Clerk.probs("p ", QUERIES, len(WORDS)))
    ask(undisturbed, Clerk())
    assert content(folder) == content(undisturbed)


def content(root: Path) -> dict[Path, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root): path.read_bytes() for path in files}


@given(data=st.data())
def test_a_damaged_shard_is_scored_again(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, clerk = Path(name), Clerk()
        expected = ask(folder, Clerk(), QUERIES[:8])
        (shard,) = folder.rglob("*.npz")
        whole = shard.read_bytes()
        start = data.draw(st.integers(0, len(whole) - 1))
        shard.write_bytes(whole[:start] + data.draw(st.binary(max_size=40)))
        for _ in range(2):
            np.testing.assert_array_equal(ask(folder, clerk, QUERIES[:8]), expected)
            assert clerk.asked == QUERIES[:8]


def test_a_store_is_a_folder_that_can_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for store in ("s3://bucket/folder", tmp_path / "file"):
        refuses(ConfigError, StoredScorer, Clerk(), store, names=[store])
    refuses(OSError, ask, tmp_path / "file" / "store", Clerk(), names=["file"])
