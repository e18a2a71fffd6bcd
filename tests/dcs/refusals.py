"""What every refusal owes: an error of its type, on one line, that names what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest


def refuses(
    error: type[Exception],
    ask: Callable[..., object],
    /,
    *arguments: Any,
    names: Sequence[object] = (),
    **options: Any,
) -> str:
    """Assert that a call fails with such an error, of one line that names all parts: return it."""
    with pytest.raises(error) as caught:
        ask(*arguments, **options)
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    assert [part for part in map(str, names) if part not in said] == []
    return said
