"""Every key of a sweep's YAML is written down with its default."""

from __future__ import annotations

import re

import pytest
import yaml
from pydantic import BaseModel

from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.config.tuner import PARTS

from .runner import ROOT

_PARTS = {"Top level": SweepConfig} | {
    f"`{name}`": SweepConfig.model_fields[name].annotation
    for name in ("tuner", "scoring", "tracking")
}
_PARTS |= {f"`tuner.{name}`": model for name, model in PARTS.items()}


def _rows(title: str) -> dict[str, str]:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    part = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", part, re.MULTILINE))


@pytest.mark.parametrize("title", _PARTS)
def test_keys_and_defaults_are_those_of_the_code(title: str) -> None:
    model: type[BaseModel] = _PARTS[title]
    rows = _rows(title)
    assert sorted(rows) == sorted(model.model_fields)
    for key, shown in rows.items():
        field = model.model_fields[key]
        if shown == "see below":
            continue
        if field.is_required():
            assert shown == "needed", key
            continue
        default = field.get_default(call_default_factory=True)
        if shown == "none":
            assert default in (None, (), {}), key
        else:
            value = yaml.safe_load(shown.strip("`"))
            assert value == (list(default) if isinstance(default, tuple) else default), key
