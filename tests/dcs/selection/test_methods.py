"""Methods: one name each, and the corrections each may choose from."""

from __future__ import annotations

import pickle

import pytest

from dcs.errors import ConfigError
from dcs.selection.methods import METHODS, get_method, method_names


@pytest.mark.parametrize("name", method_names(baselines=True))
def test_found_by_name(name: str) -> None:
    method = get_method(name)
    assert method.name == name
    assert pickle.loads(pickle.dumps(method)) == method
    assert method.searches == (method.correction_set() is not None)
    assert method.searches == (method in METHODS[1:])
    small, large = method.correction_set(10), method.correction_set(20)
    assert method.uses_weight_scale == (small != large)


def test_dcs_is_both_families() -> None:
    weights, memberships, both = (
        get_method(name).correction_set(7) or () for name in ("dnip", "furud", "dcs")
    )
    assert {item.kind for item in weights} == {"weight"}
    assert {item.kind for item in memberships} == {"membership"}
    assert [*both] == [*memberships, *weights]


def test_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(ConfigError, match="furud"):
        get_method("furd")
