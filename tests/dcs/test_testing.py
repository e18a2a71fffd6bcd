"""The shipped contracts are kept by what is built in, and fail for what breaks them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from dcs.errors import InvalidInputError
from dcs.methods.calibrations import CALIBRATIONS, LabelFree, batch_calibration
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.methods import Method, get_method, method_names
from dcs.testing import check_calibration, check_method, check_scorer

#: The long searches of the published configuration take ten times as long as all others.
_METHODS = [name for name in method_names(peers=True) if "long" not in name]


@pytest.mark.parametrize("name", _METHODS)
def test_methods_keep_their_contract(name: str) -> None:
    method = get_method(name)
    if method.settings is not None:
        # A few of the settings that it compares.
        whole = method.settings(120)
        parts = {"candidates": whole.candidates[:5], "betas": whole.betas[3:4]}
        few = replace(whole, **parts, folds=2)
        method = replace(method, settings=lambda n_labelled: few)
    check_method(method)


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_calibrations_keep_their_contract(name: str) -> None:
    check_calibration(CALIBRATIONS[name])


class _Lengths:
    """A scorer by the lengths of texts, which breaks the contract in one way."""

    name, version, model, revision = "lengths", "1", "none", "1"
    settings: ClassVar = {}
    packages = ()

    def __init__(self, fault: str) -> None:
        self._fault = fault
        if fault == "revision":
            self.revision = ""

    def close(self) -> None:
        pass

    def score(self, prefix: Any, queries: Any, words: Any, progress: Any = int) -> Any:
        weights = np.array(
            [[1 + len(q) % (3 + len(w) + ord(w[-1])) for w in words] for q in queries]
        )
        probs = weights.reshape(-1, len(words)) / weights.sum(axis=-1).reshape(-1, 1)
        progress(len(queries) + (self._fault == "+"))
        match self._fault:
            case "batch":
                shares = probs / probs.sum(axis=0)
                return shares / shares.sum(axis=1, keepdims=True)
            case "sum":
                return probs * 0.5
            case "columns":
                return np.sort(probs, axis=1)
            case "rows":
                return np.full_like(probs, 1 / len(words))
            case "float32":
                return probs.astype(np.float32)
        return probs + 1e-11 * np.arange(len(words))  # Rounding is no fault.


@pytest.mark.parametrize("fault", ["revision", "batch", "sum", "columns", "rows", "float32", "+"])
def test_a_scorer_that_breaks_its_contract_fails(fault: str) -> None:
    check_scorer(_Lengths(""))
    with pytest.raises(AssertionError):
        check_scorer(_Lengths(fault))


@pytest.mark.parametrize("fault", ["classes", "seed"])
def test_a_method_that_breaks_its_contract_fails(fault: str) -> None:
    def fitter(probs: Any, labels: Any, *, classes: Any, seed: int) -> CorrectionScheme:
        if fault == "classes":
            return CorrectionScheme.identity([name.upper() for name in classes])
        rows = probs[np.random.default_rng().permutation(len(probs))[:20]]
        return CorrectionScheme.identity(classes, calibration=batch_calibration(rows))

    with pytest.raises((AssertionError, InvalidInputError)):
        check_method(Method("other", "Other", fitter))


def test_a_calibration_that_breaks_its_contract_fails() -> None:
    for broken in (
        replace(CALIBRATIONS["linear"], needs_labels=False),
        replace(CALIBRATIONS["linear"], adds_offsets=True),
        LabelFree("other", make=lambda p: batch_calibration(np.random.default_rng().permuted(p))),
    ):
        with pytest.raises(AssertionError):
            check_calibration(broken)
