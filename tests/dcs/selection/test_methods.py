"""Methods: one name each, and the corrections each may choose from."""

from __future__ import annotations

import pickle

import pytest

from dcs.errors import ConfigError
from dcs.schemes.corrections import CorrectionSet
from dcs.selection.methods import BASELINES, METHODS, get_method, method_names


@pytest.mark.parametrize("name", method_names())
def test_found_by_name(name: str) -> None:
    method = get_method(name)
    assert method.name == name
    assert pickle.loads(pickle.dumps(method)) == method
    assert method.searches == (method.correction_set() is not None)


@pytest.mark.parametrize("scale", [2, 7, 30])
def test_dcs_is_both_families(scale: int) -> None:
    sets = {name: get_method(name).correction_set(scale) for name in ("dnip", "furud", "dcs")}
    dnip, furud, both = sets["dnip"], sets["furud"], sets["dcs"]
    assert dnip is not None
    assert furud is not None
    assert both is not None
    assert {item.kind for item in dnip} == {"weight"}
    assert {item.kind for item in furud} == {"membership"}
    assert list(both) == [*furud, *dnip]
    assert (len(dnip), len(furud)) == (scale, 19)


@pytest.mark.parametrize("name", [name for name in method_names() if name != "icl"])
def test_says_whether_the_weight_scale_matters(name: str) -> None:
    method = get_method(name)
    small, large = method.correction_set(10), method.correction_set(20)
    assert isinstance(small, CorrectionSet)
    assert isinstance(large, CorrectionSet)
    assert method.uses_weight_scale == (len(small) != len(large))


def test_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(ConfigError, match="furud"):
        get_method("furd")


def test_baselines_search_nothing_and_are_found() -> None:
    assert method_names(baselines=True)[: len(METHODS)] == method_names()
    for baseline in BASELINES:
        assert get_method(baseline.name) is baseline
        assert not baseline.searches
