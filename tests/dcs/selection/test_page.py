"""The page of a result: its verdict, and the choice of another point in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcs.selection.compare import SelectionSettings, fit_scheme
from dcs.selection.front import FittedScheme
from dcs.selection.page import report_of, verdict, worse_classes
from dcs.selection.preference import Preference
from tests.dcs.biased import biased_table


def fitted() -> FittedScheme:
    probs, labels = biased_table(200, 3, seed=1)
    names = ["</script>", "b & c", "d"]
    settings = SelectionSettings(folds=2, betas=(0.0, 0.5))
    return fit_scheme(probs, labels, settings=settings, classes=names)


def _said(right: list[tuple[int, int]], rows: int = 40) -> str:
    """Return the verdict if these rows of each class are right before and after."""
    n, place = len(right), np.arange(len(right) * rows)
    labels, other = place // rows, (place // rows + 1) % n
    counts = np.repeat(right, rows, axis=0).T
    before, after = (np.where(place % rows < count, labels, other) for count in counts)
    return verdict(labels, before, after, "abc"[:n])


def test_the_verdict_says_what_is_shown_and_what_is_not() -> None:
    assert "Nothing is proven on 80 held-out rows" in _said([(20, 21), (22, 22)])
    fairer = _said([(36, 30), (16, 24)])
    assert "COBias improves from 50.0 to 15.0" in fairer and "accuracy from 65.0" in fairer
    assert "may be chance" in fairer and "COBias worsens" in _said([(30, 36), (24, 16)])
    same = _said([(20, 20), (22, 22)])
    assert "80 held-out rows" in same and "from" not in same


def test_the_verdict_names_the_classes_that_lose() -> None:
    labels, before = np.repeat([0, 1, 2], 40), np.repeat([0, 1, 1], 40)
    after = np.concatenate([np.repeat([0, 2], [10, 30]), np.repeat([1, 2], [38, 42])])
    worse = worse_classes(labels, before, after, ["a", "b", "c"])
    assert worse == ["a (100.0 to 25.0)"]  # Two rows of b prove nothing, and c gains.
    assert worse_classes(labels, before, before, ["a", "b", "c"]) == []
    assert "a (100.0 to 25.0)" in verdict(labels, before, after, ["a", "b", "c"])


def test_the_page_refers_to_nothing_outside_itself() -> None:
    page = report_of(fitted(), name='</script><img src="https://host/x"><!--')
    assert page.count("</script>") == report_of(fitted(), name="x").count("</script>")
    others = re.findall(r'<[^>]*\s(?:src|href)="([^"]*)"', page)
    assert others and all(to.startswith("data:") for to in others)
    assert "default-src 'none'" in page
    assert "@import" not in page and "url(" not in page


def test_the_command_of_a_point_picks_it() -> None:
    result = fitted()
    commands = re.findall(r'"pick": ?"([^"]*)"', report_of(result, name="x"))
    for point, command in zip(result.points, commands, strict=True):
        given = re.findall(r"--([\w-]+) (\S+)", command)
        rule = {k.replace("-", "_"): v if k == "prefer" else float(v) for k, v in given}
        assert not command or result.pick(Preference(**rule)).chosen is point
    assert sum(map(bool, commands)) == 5


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (420, "dark")])
def test_another_point_is_chosen(page: Any, width: int, scheme: str, tmp_path: Path) -> None:
    result, path = fitted(), tmp_path / "result.html"
    path.write_text(report_of(result, name="runs/x"), encoding="utf-8")
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    page.goto(path.as_uri())
    assert page.locator(".point").count() == len(result.points)
    assert "as written" in page.inner_text("#chosen")
    page.locator(".point.plain").focus()
    page.keyboard.press("Enter")
    assert "uncorrected" in page.inner_text("#chosen")
    assert [page.inner_text("#classes span >> nth=0")] == ["</script>"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
