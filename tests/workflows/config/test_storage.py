"""Where studies may be kept, and that no password shows."""

from __future__ import annotations

import pickle

import pytest

from dcs.errors import ConfigError
from workflows.config.sweep import SweepConfig, load_config
from workflows.config.tuner import STORAGE_VARIABLE, StudyStorage, StudyStorageError
from workflows.plan import sweep_key

SECRET = "s3cret/word"
URL = "postgresql://dcs:s3cret%2Fword@127.0.0.1:1/postgres"


@pytest.mark.parametrize(
    "place",
    ["sqlite+pysqlite:///a.db", f"redis://user:{SECRET}@host/0", "postgresql://a:b@c:d/e"],
)
def test_other_places_are_refused(place):
    with pytest.raises(ConfigError, match="optuna_storage") as caught:
        StudyStorage(place)
    assert SECRET not in str(caught.value)


def test_a_journal_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(StudyStorageError, match=str(tmp_path)):
        StudyStorage(str(tmp_path)).check()


def test_a_password_is_shown_nowhere(tmp_path):
    storage = StudyStorage(URL)
    assert pickle.loads(pickle.dumps(storage)) == storage
    with pytest.raises(StudyStorageError, match=r"127\.0\.0\.1:1") as caught:
        storage.check()
    config = SweepConfig(name="a", tasks=("helpdesk",), optuna_storage=URL)
    assert StudyStorage.chosen(config.optuna_storage) == storage
    shown = [repr(storage), str(caught.value), repr(caught.value), repr(config), str(config)]
    shown += [config.model_dump_json(), str(config.model_dump()), storage.label]
    shown += [f"{caught.value.__cause__}", repr(caught.getrepr(style="short"))]
    shown += [storage.hide(f"no room at {URL}, nor with {SECRET}")]
    for text in shown:
        assert "s3cret" not in text
    file = tmp_path / "a.yaml"
    file.write_text(f"name: a\ntasks: [helpdesk]\noptuna_storage: oracle://a:{SECRET}@b\n")
    with pytest.raises(ConfigError, match="optuna_storage") as refused:
        load_config(file)
    assert SECRET not in str(refused.value)
    # Where studies are kept does not make another sweep of it.
    assert sweep_key(config) == sweep_key(SweepConfig(name="a", tasks=("helpdesk",)))


def test_the_environment_may_name_the_storage(monkeypatch):
    config = SweepConfig(name="a", tasks=("helpdesk",))
    monkeypatch.delenv(STORAGE_VARIABLE, raising=False)
    assert StudyStorage.chosen(config.optuna_storage) is None
    monkeypatch.setenv(STORAGE_VARIABLE, "a.log")
    assert StudyStorage.chosen(config.optuna_storage) == StudyStorage("a.log")
    own = config.model_copy(update={"optuna_storage": None})
    assert StudyStorage.chosen(own.optuna_storage) == StudyStorage("a.log")
