"""Studies in a storage: the same results, nothing judged twice, no password anywhere."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import optuna
import pytest
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend

from dcs.errors import ConfigError
from dcs.selection.methods import get_method
from tests.workflows.conftest import biased_table
from workflows.config.sweep import SweepConfig, TunerSettings, load_config
from workflows.plan import sweep_key
from workflows.tuning.paper import run_study
from workflows.tuning.storage import (
    STORAGE_VARIABLE,
    StudyLedger,
    StudyStorage,
    StudyStorageError,
    storage_of,
)
from workflows.tuning.study import Asked, Outcome, Verdict, run_trials

SECRET = "s3cret/word"
URL = "postgresql://dcs:s3cret%2Fword@127.0.0.1:1/postgres"


class _Killed(BaseException):
    """Ends a study as the end of its process would: nothing is told."""


class _Judge:
    """Judges a fixed number of trials, then is killed."""

    def __init__(self, lives: int = 1000) -> None:
        self.lives = lives
        self.judged: list[int] = []

    def __call__(self, asked: Asked[float]) -> Verdict[str]:
        if len(self.judged) == self.lives:
            raise _Killed
        self.judged.append(asked.number)
        value = -((asked.work - 1.0) ** 2)
        return Verdict(value, {"dev/score": value, "opt/z": 1 / 3}, "found")


def _suggest(trial: optuna.Trial) -> float:
    return trial.suggest_float("x", -3.0, 3.0) + trial.suggest_categorical("shift", [0.0, 0.5])


def _study(ledger: StudyLedger | None, judge: _Judge) -> list[Outcome]:
    return list(run_trials(_suggest, judge, trials=18, window=3, seed=2, ledger=ledger))


def _figures(outcomes: list[Outcome]) -> list[tuple]:
    return [(o.asked.params, o.verdict.value, o.verdict.metrics) for o in outcomes]


@pytest.fixture
def storage(tmp_path: Path) -> StudyStorage:
    return StudyStorage(str(tmp_path / "studies" / "journal.log"))


def _written(storage: StudyStorage, name: str = "cell") -> optuna.Study:
    opened: BaseStorage = JournalStorage(JournalFileBackend(storage.place))
    return optuna.load_study(study_name=name, storage=opened)


def test_a_ledger_changes_nothing_and_shows_everything(storage):
    storage.check()
    with storage.ledger("cell", notes={"cell": "dcs trec"}) as ledger:
        outcomes = _study(ledger, _Judge())
    assert _figures(outcomes) == _figures(_study(None, _Judge()))
    study = _written(storage)
    assert study.user_attrs == {"cell": "dcs trec"}
    assert [t.user_attrs["number"] for t in study.trials] == list(range(18))
    assert [(t.params, t.value) for t in study.trials] == [f[:2] for f in _figures(outcomes)]
    assert study.best_value == max(o.verdict.value for o in outcomes)


def test_what_was_finished_is_not_judged_again(storage):
    undisturbed = _figures(_study(None, _Judge()))
    judged: list[int] = []
    for lives in (5, 0, 7, 100):
        judge = _Judge(lives)
        with storage.ledger("cell") as ledger:
            try:
                outcomes = _study(ledger, judge)
            except _Killed:
                states = [t.state.name for t in _written(storage).trials]
                assert states.count("RUNNING") == 1
        judged += judge.judged
    assert judged == list(range(18))
    assert _figures(outcomes) == undisturbed
    trials = _written(storage).trials
    assert [t.state.name for t in trials].count("FAIL") == 3
    complete = [t for t in trials if t.state.name == "COMPLETE"]
    assert sorted(t.user_attrs["number"] for t in complete) == list(range(18))
    # What was under way was put in line again, with the same parameters.
    for failed in (t for t in trials if t.state.name == "FAIL"):
        (again,) = [t for t in complete if t.user_attrs["number"] == failed.user_attrs["number"]]
        assert again.params == failed.params


def test_a_trial_that_kills_its_process_is_given_up(storage):
    for lives in (4, *[0] * 9):
        with storage.ledger("cell") as ledger, pytest.raises(_Killed):
            _study(ledger, _Judge(lives))
    with storage.ledger("cell") as ledger, pytest.raises(StudyStorageError, match="trial 4 "):
        _study(ledger, _Judge())


def test_other_code_judges_again(storage, monkeypatch):
    with storage.ledger("cell") as ledger:
        _study(ledger, _Judge())
    monkeypatch.setattr("workflows.tuning.storage.source_digest", lambda: "another")
    judge = _Judge()
    with storage.ledger("cell") as ledger:
        _study(ledger, judge)
    assert judge.judged == list(range(18))


def test_studies_share_a_storage(storage):
    with storage.ledger("one") as one, storage.ledger("two") as two:
        first = run_trials(_suggest, _Judge(), trials=9, window=2, seed=1, ledger=one)
        second = run_trials(_suggest, _Judge(), trials=9, window=2, seed=2, ledger=two)
        for _ in zip(first, second, strict=True):
            pass
    assert len(_written(storage, "one").trials) == len(_written(storage, "two").trials) == 9


def test_a_cell_found_again_is_the_same(storage):
    table, method = biased_table(150), get_method("dcs")
    settings = TunerSettings(trials=6, window=2, budget=2000)
    alone = run_study(table, method, settings=settings, seed=1)
    for _ in range(2):
        with storage.ledger("cell") as ledger:
            fitted = run_study(table, method, settings=settings, seed=1, ledger=ledger)
        assert fitted.scheme == alone.scheme
        assert fitted.annealing.trace == alone.annealing.trace
        for ours, theirs in zip(fitted.trials, alone.trials, strict=True):
            assert (ours.params, ours.metrics) == (theirs.params, theirs.metrics)


def test_a_storage_that_fails_on_the_way_costs_no_result(storage, caplog, monkeypatch):
    with storage.ledger("cell") as ledger:

        def fail(*arguments, **options):
            raise OSError(28, f"No space left on device, {URL}")

        monkeypatch.setattr(ledger._study, "enqueue_trial", fail)
        ledger._hide = StudyStorage(URL)._hidden
        with caplog.at_level(logging.WARNING, logger="workflows.tuning.storage"):
            outcomes = _study(ledger, _Judge())
    assert _figures(outcomes) == _figures(_study(None, _Judge()))
    # Said once, not for every trial.
    (line,) = caplog.messages
    assert "No space left" in line
    assert "s3cret" not in line


@pytest.mark.parametrize("place", ["sqlite:///a.db", "sqlite+pysqlite:///a.db"])
def test_sqlite_is_refused_with_the_reason(place):
    with pytest.raises(ConfigError, match="locks") as caught:
        StudyStorage(place)
    assert "postgresql://" in str(caught.value)


@pytest.mark.parametrize("place", [f"redis://user:{SECRET}@host/0", " "])
def test_other_places_are_refused(place):
    with pytest.raises(ConfigError, match="optuna_storage") as caught:
        StudyStorage(place)
    assert SECRET not in str(caught.value)


def test_a_password_is_shown_nowhere(tmp_path):
    storage = StudyStorage(URL)
    assert pickle.loads(pickle.dumps(storage)) == storage
    with pytest.raises(StudyStorageError, match=r"127\.0\.0\.1:1") as caught:
        storage.check()
    config = SweepConfig(name="a", tasks=("helpdesk",), optuna_storage=URL)
    assert storage_of(config) == storage
    shown = [repr(storage), str(caught.value), repr(caught.value), repr(config), str(config)]
    shown += [config.model_dump_json(), str(config.model_dump()), storage.label]
    shown += [f"{caught.value.__cause__}", repr(caught.getrepr(style="short"))]
    for text in shown:
        assert "s3cret" not in text
    file = tmp_path / "a.yaml"
    file.write_text(f"name: a\ntasks: [helpdesk]\noptuna_storage: oracle://a:{SECRET}@b\n")
    with pytest.raises(ConfigError, match="'optuna_storage': .*oracle:// is not known") as refused:
        load_config(file)
    assert SECRET not in str(refused.value)
    # Where studies are written down does not make another sweep of it.
    assert sweep_key(config) == sweep_key(SweepConfig(name="a", tasks=("helpdesk",)))


def test_the_environment_may_name_the_storage(monkeypatch, tmp_path):
    config = SweepConfig(name="a", tasks=("helpdesk",))
    monkeypatch.delenv(STORAGE_VARIABLE, raising=False)
    assert storage_of(config) is None
    monkeypatch.setenv(STORAGE_VARIABLE, str(tmp_path / "a.log"))
    assert storage_of(config) == StudyStorage(str(tmp_path / "a.log"))
    named = config.model_copy(update={"optuna_storage": None})
    assert storage_of(named) == storage_of(config)
