from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dcs.errors import ConfigError, DCSError, MissingDependencyError
from dcs.scoring import Progress, StoredScorer, _claims, _places, score_settings
from dcs.scoring._places import open_place
from dcs.scoring.cache import ShardStore, group_key, query_hash

WORDS = ("even", "odd", "other")
QUERIES = [f"number {k}" for k in range(50)]


class Clerk:
    """A scorer without a model, which notes what it was asked and may die over it."""

    name, version, model, revision = "clerk", "1", "abacus", "r7"
    settings = {"dtype": "float64"}  # noqa: RUF012

    def __init__(self, *, die_after: int | None = None, pause: float = 0.0) -> None:
        self.asked: list[str] = []
        self.calls = 0
        self.die_after = die_after
        self.pause = pause

    def score(
        self,
        prefix: str,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        self.calls += 1
        if self.calls == self.die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.pause)
        self.asked += queries
        rows = []
        for query in queries:
            rng = np.random.default_rng(list(query_hash(prefix + query)))
            rows.append(rng.dirichlet(np.ones(len(label_words))))
            if progress is not None:
                progress(1)
        return np.array(rows).reshape(len(queries), len(label_words))

    def close(self) -> None:
        pass


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path.name}/s"


def ask(place: str, clerk: Clerk, queries: Sequence[str] = QUERIES) -> NDArray[np.float64]:
    return StoredScorer(clerk, ShardStore(place), shard_size=8).score("p ", queries, WORDS)


class TestScoring:
    def test_equals_the_scorer(self, place: str) -> None:
        expected = Clerk().score("p ", QUERIES, WORDS)
        for _ in range(2):
            np.testing.assert_array_equal(ask(place, Clerk()), expected)

    def test_no_prompt_is_scored_twice(self, place: str) -> None:
        first, more, again = Clerk(), Clerk(), Clerk()
        ask(place, first, QUERIES[:21])
        ask(place, more, QUERIES)
        ask(place, again, QUERIES[::-1])
        assert first.asked + more.asked == QUERIES
        assert again.asked == []

    def test_a_query_that_occurs_twice_is_scored_once(self, place: str) -> None:
        clerk, steps = Clerk(), list[int]()
        queries = QUERIES[:10] * 3
        scorer = StoredScorer(clerk, ShardStore(place), shard_size=8)
        probs = scorer.score("p ", queries, WORDS, progress=steps.append)
        assert clerk.asked == QUERIES[:10]
        assert scorer.scored == 10
        assert sum(steps) == 30
        np.testing.assert_array_equal(probs[:10], probs[20:])

    def test_progress_counts_what_is_there_already(self, place: str) -> None:
        ask(place, Clerk(), QUERIES[:20])
        steps: list[int] = []
        scorer = StoredScorer(Clerk(), ShardStore(place), shard_size=8)
        scorer.score("p ", QUERIES, WORDS, progress=steps.append)
        assert sum(steps) == len(QUERIES)
        assert min(steps) > 0

    def test_no_queries(self, place: str) -> None:
        assert ask(place, Clerk(), []).shape == (0, 3)

    @pytest.mark.parametrize(
        "change",
        [
            {"revision": "r8"},
            {"model": "slide rule"},
            {"version": "2"},
            {"name": "other"},
            {"settings": {"dtype": "float32"}},
        ],
    )
    def test_another_scorer_uses_no_old_shard(self, place: str, change: dict[str, object]) -> None:
        ask(place, Clerk())
        other = Clerk()
        for name, value in change.items():
            setattr(other, name, value)
        ask(place, other)
        assert other.asked == QUERIES

    def test_another_prompt_uses_no_old_shard(self, place: str) -> None:
        ask(place, Clerk())
        for prefix, words in (("q ", WORDS), ("p ", WORDS[::-1])):
            clerk = Clerk()
            StoredScorer(clerk, ShardStore(place)).score(prefix, QUERIES, words)
            assert clerk.asked == QUERIES

    def test_a_folder_goes_by_its_content(self) -> None:
        here, there = Clerk(), Clerk()
        here.revision = there.revision = "sha256:00ff"  # type: ignore[misc]
        there.model = "elsewhere/abacus"  # type: ignore[misc]
        keys = {group_key(score_settings(clerk, "", WORDS)) for clerk in (here, there)}
        assert len(keys) == 1
        assert score_settings(there, "", WORDS)["_model"] == "elsewhere/abacus"


class TestKilled:
    CODE = """
import sys
from dcs.scoring import StoredScorer
from dcs.scoring.cache import ShardStore
from tests.dcs.scoring.test_cache import QUERIES, WORDS, Clerk
clerk = Clerk(die_after=int(sys.argv[2]))
StoredScorer(clerk, ShardStore(sys.argv[1]), shard_size=8).score("p ", QUERIES, WORDS)
"""

    @pytest.mark.parametrize("call", [1, 4])
    def test_goes_on_at_the_shard(self, tmp_path: Path, call: int) -> None:
        place = str(tmp_path / "store")
        command = [sys.executable, "-c", self.CODE, place, str(call)]
        root = Path(__file__).parents[3]
        assert subprocess.run(command, cwd=root, check=False).returncode == -signal.SIGKILL
        clerk = Clerk()
        probs = ask(place, clerk)
        assert clerk.asked == QUERIES[8 * (call - 1) :]
        np.testing.assert_array_equal(probs, Clerk().score("p ", QUERIES, WORDS))
        undisturbed = str(tmp_path / "other")
        ask(undisturbed, Clerk())
        assert content(Path(place)) == content(Path(undisturbed))


def content(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def work(place: str, start: object, answers: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    clerk = Clerk(pause=0.02)
    probs = ask(place, clerk)
    answers.put((clerk.asked, probs.tobytes()))  # type: ignore[attr-defined]


@pytest.mark.parametrize("scheme", ["", "local://"])
def test_processes_at_once_share_the_work(tmp_path: Path, scheme: str) -> None:
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    start, answers = context.Event(), context.Queue()
    place = scheme + str(tmp_path / "store")  # with the scheme it goes through fsspec
    workers = [context.Process(target=work, args=(place, start, answers)) for _ in range(3)]
    for worker in workers:
        worker.start()
    start.set()
    results = [answers.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert sorted(sum((asked for asked, _ in results), [])) == sorted(QUERIES)
    assert {probs for _, probs in results} == {Clerk().score("p ", QUERIES, WORDS).tobytes()}
    assert ShardStore(place).verify() == []
    left = {path.suffix for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert left == {".npz", ".json"}


def test_runs_of_different_lengths_share_the_work(tmp_path: Path) -> None:
    # The short run's shard is a part of the long run's first: one waits for the other.
    place = str(tmp_path / "store")
    group = ShardStore(place).group({"label_words": list(WORDS)})
    hashes = [query_hash(query) for query in QUERIES[:8]]
    with group.lock(hashes, wait=True) as held, group.lock(hashes[:3], wait=False) as other:
        assert (held, other) == (True, False)
    with group.lock(hashes[:3], wait=False) as held:
        assert held


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def wait_for(condition: Callable[[], object]) -> None:
    for _ in range(20_000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never came")


class TestClaims:
    """Locks of a store that is not local, with processes played by objects of their own."""

    @pytest.fixture(autouse=True)
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr(_claims, "_now", clock)
        monkeypatch.setattr(_claims, "BEAT", 0.02)
        monkeypatch.setattr(_claims, "_POLL", 0.01)
        return clock

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"local://{tmp_path}"

    def test_one_holds_and_the_others_do_not(self, url: str, clock: Clock) -> None:
        here, there = open_place(url), open_place(url)
        claim = f"g/a.0{_claims.CLAIM}"
        with here.lock("g/a", wait=True) as first:
            for _ in range(3):  # longer than the lease: signs of life renew it
                with (
                    there.lock("g/a", wait=False) as second,
                    there.lock("g/b", wait=False) as other,
                ):
                    assert (first, second, other) == (True, False, True)
                seen = here.read(claim)
                wait_for(lambda seen=seen: here.read(claim) != seen)
                clock.seconds += 0.9 * _claims.LEASE
        with there.lock("g/a", wait=False) as second:
            assert second
        assert here.files("g") == {}

    def test_a_waiting_process_goes_on_when_the_other_ends(self, url: str) -> None:
        here, there = open_place(url), open_place(url)
        order = []

        def wait() -> None:
            with there.lock("g/a", wait=True):
                order.append("waited")

        thread = threading.Thread(target=wait)
        with here.lock("g/a", wait=True):
            thread.start()
            wait_for(lambda: there._claims._seen)
            order.append("ended")
        thread.join()
        assert order == ["ended", "waited"]

    def test_a_claim_without_a_holder_is_taken_over_by_one(self, url: str, clock: Clock) -> None:
        dead = open_place(url)
        assert dead._claims._take("g/a") == 0  # and then it was killed
        heirs = [open_place(url) for _ in range(4)]
        held: list[int] = []
        most: list[int] = []

        def take_over(number: int) -> None:
            with heirs[number].lock("g/a", wait=True):
                held.append(number)
                most.append(len(held))
                time.sleep(0.02)
                held.remove(number)

        threads = [threading.Thread(target=take_over, args=(n,), daemon=True) for n in range(4)]
        for thread in threads:
            thread.start()
        wait_for(lambda: all(heir._claims._seen for heir in heirs))
        assert most == []
        clock.seconds += _claims.LEASE
        for thread in threads:
            thread.join(100)
        assert most == [1, 1, 1, 1]
        assert dead.files("g") == {}

    def test_one_that_comes_back_late_takes_nothing_away(self, url: str, clock: Clock) -> None:
        late, heir = open_place(url), open_place(url)
        generation = late._claims._take("g/a")
        assert generation == 0
        assert heir._claims._take("g/a") is None
        clock.seconds += _claims.LEASE
        assert heir._claims._take("g/a") == 1
        late._claims._release("g/a", generation)
        assert open_place(url)._claims._take("g/a") is None
        heir._claims._release("g/a", 1)
        assert heir.files("g") == {}

    def test_one_that_looked_while_an_heir_ended_does_not_begin_beside_the_next(
        self, url: str, clock: Clock
    ) -> None:
        dead, heir, slow, following = (open_place(url) for _ in range(4))
        assert dead._claims._take("g/a") == 0
        assert heir._claims._take("g/a") is None
        assert slow._claims._take("g/a") is None
        clock.seconds += _claims.LEASE
        assert heir._claims._take("g/a") == 1
        objects = slow._claims._objects

        class Interrupted:
            """After the look at the first claim, others go on before the look at the second."""

            def __getattr__(self, name: str) -> object:
                return getattr(objects, name)

            def read(self, name: str) -> bytes | None:
                if name.endswith(f".1{_claims.CLAIM}"):
                    heir._claims._release("g/a", 1)
                    assert following._claims._take("g/a") == 0
                return objects.read(name)

        slow._claims._objects = Interrupted()
        assert slow._claims._take("g/a") is None
        following._claims._release("g/a", 0)
        assert dead.files("g") == {}

    def test_without_exclusive_creation_everybody_works(
        self, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(_places._Remote, "create", lambda *args: True)
        here, there = open_place(url), open_place(url)
        with here.lock("g/a", wait=True) as first, there.lock("g/a", wait=True) as second:
            assert first
            assert second
        assert "cannot create objects exclusively" in caplog.text

    def test_what_a_store_refuses_is_one_line(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from fsspec.implementations.local import LocalFileSystem

        def refuse(*args: object, **kwargs: object) -> None:
            raise PermissionError("Access\ndenied")

        for name in ("pipe_file", "open"):
            monkeypatch.setattr(LocalFileSystem, name, refuse)
        with pytest.raises(DCSError, match=r"cannot write .*\(PermissionError: Access denied\)"):
            ask(url, Clerk())


class TestCare:
    def test_groups(self, place: str) -> None:
        ask(place, Clerk())
        (info,) = ShardStore(place).groups()
        assert (info.rows, info.shards) == (50, 7)
        assert info.size > 50 * 3 * 8
        assert info.key == group_key(info.settings)
        assert info.settings["prefix"] == "p "
        assert info.settings["label_words"] == list(WORDS)
        assert ShardStore(place).info(info.key[:8]) == info
        with pytest.raises(ConfigError, match="no group begins with 'zz'"):
            ShardStore(place).info("zz")

    def test_an_empty_store(self, place: str) -> None:
        store = ShardStore(place)
        assert (store.groups(), store.verify(), store.collect()) == ([], [], [])

    def test_damage_is_found_and_mended(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        place = tmp_path / "store"
        expected = ask(str(place), Clerk())
        shard = sorted(place.rglob("*.npz"))[2]
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-40] + b"x" + whole[-39:])
        store = ShardStore(place)
        assert [line.partition(": ")[0] for line in store.verify()] == [
            f"{shard.parent.name}/{shard.name}"
        ]
        clerk = Clerk()
        np.testing.assert_array_equal(ask(str(place), clerk), expected)
        assert len(clerk.asked) in (2, 8)
        assert "damaged" in caplog.text
        assert store.verify() == []
        assert shard.read_bytes() == whole

    def test_changed_settings_are_found(self, tmp_path: Path) -> None:
        ask(str(tmp_path), Clerk())
        (path,) = tmp_path.rglob("settings.json")
        path.write_text(path.read_text().replace("abacus", "slide rule"))
        assert "not the settings of this group" in ShardStore(tmp_path).verify()[0]
        assert ShardStore(tmp_path).collect() == []
        clerk = Clerk()
        ask(str(tmp_path), clerk)
        assert clerk.asked == []
        assert ShardStore(tmp_path).verify() == []
        path.unlink()
        ask(str(tmp_path), clerk)
        assert ShardStore(tmp_path).verify() == []

    def test_nothing_needed_is_collected(self, place: str) -> None:
        ask(place, Clerk())
        assert ShardStore(place).collect() == []

    def test_collects_what_is_covered_damaged_or_half_written(self, tmp_path: Path) -> None:
        store = ShardStore(tmp_path)
        group = store.group({"label_words": ["a", "b"]})
        hashes = [query_hash(query) for query in QUERIES[:6]]
        probs = np.full((6, 2), 0.5)
        group.write(hashes, probs)
        small = group.write(hashes[2:4], probs[2:4])
        folder = tmp_path / group.key
        (folder / f"{'0' * 32}.npz").write_bytes(b"")
        old = ("old.part", "aa.lock", "aa.0.claim")
        for name in (*old, "new.part", "bb.lock", "bb.0.claim"):
            (folder / name).touch()
        for name in old:
            os.utime(folder / name, (0, 0))
        expected = {f"{group.key}/{n}" for n in (small, f"{'0' * 32}.npz", *old)}
        assert set(store.collect(dry_run=True)) == expected
        assert set(store.collect()) == expected
        assert store.collect() == []
        assert store.group({"label_words": ["a", "b"]}).rows.keys() == set(hashes)

    def test_collects_old_and_chosen_groups(self, place: str) -> None:
        ask(place, Clerk())
        store = ShardStore(place)
        assert store.collect(older_than=3600.0) == []
        key = store.groups()[0].key
        assert len(store.collect(keys=[key[:6]])) == 8
        assert store.groups() == []

    def test_a_store_must_be_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match="is a file"):
            ShardStore(tmp_path / "file")

    @pytest.mark.parametrize("url", ["nosuch://x/y"])
    def test_unknown_url(self, url: str) -> None:
        with pytest.raises(DCSError, match="nosuch") as caught:
            ShardStore(url)
        assert isinstance(caught.value, (ConfigError, MissingDependencyError))
        assert "\n" not in str(caught.value)
