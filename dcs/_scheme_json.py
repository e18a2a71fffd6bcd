"""The plain values that the file of a correction scheme holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dcs._messages import show, suggest
from dcs.calibration import Calibration
from dcs.corrections import Correction, Weight, correction_from_dict
from dcs.errors import InvalidInputError, SchemeError

if TYPE_CHECKING:
    from dcs.scheme import CorrectionScheme

__all__ = ["Parts", "parsed", "written"]

_FORMAT: Final = "dcs-scheme"
#: Version 2 adds the calibration and weights above 1; a scheme without them is still written as 1,
#: which older releases read.
_VERSION: Final = 2
_KEYS: Final = ("format", "version", "calibration", "corrections", "provenance")


class Parts(NamedTuple):
    """What a scheme is made of, in the order of its parameters."""

    classes: tuple[str, ...]
    corrections: tuple[Correction, ...]
    provenance: dict[str, Any]
    calibration: Calibration | None


def written(scheme: CorrectionScheme) -> dict[str, Any]:
    """Return the values of a scheme, in the oldest version that can hold them."""
    above = any(isinstance(c, Weight) and c.value > 1.0 for c in scheme.corrections)
    data: dict[str, Any] = {"format": _FORMAT, "version": 2 if above else 1}
    if scheme.calibration is not None:
        data |= {"version": 2, "calibration": scheme.calibration.to_dict()}
    return data | {
        "corrections": [
            {"class": name, **correction.to_dict()}
            for name, correction in zip(scheme.classes, scheme.corrections, strict=True)
        ],
        "provenance": dict(scheme.provenance),
    }


def parsed(data: Any, source: str) -> Parts:
    """Read what :func:`written` gives.

    Raises
    ------
    SchemeError
        When the values are not those of a scheme; names `source` and the key.
    """
    _check_head(data, source)
    entries = data["corrections"]
    if not isinstance(entries, list):
        raise SchemeError(f"{source}: key 'corrections' must be a list, one entry per class")
    pairs = [_correction(entry, f"{source}: corrections[{i}]") for i, entry in enumerate(entries)]
    calibration: Calibration | None = None
    if "calibration" in data:
        try:
            calibration = Calibration.from_dict(data["calibration"])
        except InvalidInputError as error:
            raise SchemeError(f"{source}: key 'calibration': {error}") from error
    return Parts(
        classes=tuple(name for name, _ in pairs),
        corrections=tuple(correction for _, correction in pairs),
        provenance=data.get("provenance", {}),
        calibration=calibration,
    )


def _correction(entry: Any, where: str) -> tuple[str, Correction]:
    if not isinstance(entry, dict):
        raise SchemeError(f"{where} is {show(entry)}; an object with class and kind is needed")
    rest = dict(entry)
    name = rest.pop("class", None)
    if not isinstance(name, str):
        raise SchemeError(f"{where}: key 'class' is {show(name)}; a class name is needed")
    try:
        return name, correction_from_dict(rest)
    except InvalidInputError as error:
        raise SchemeError(f"{where} (class {show(name)}): {error}") from error


def _check_head(data: Any, source: str) -> None:
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise SchemeError(f"{source}: key 'format' is not {_FORMAT!r}: not a correction scheme")
    version = data.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SchemeError(
            f"{source}: key 'version' is {show(version)}; 1..{_VERSION} are readable"
        )
    if version > _VERSION:
        raise SchemeError(
            f"{source}: key 'version' is {show(version)}, newer than the {_VERSION} known here; "
            "upgrade this package"
        )
    for key in data:
        if key not in _KEYS:
            raise SchemeError(f"{source}: unknown key {show(key)}{suggest(key, _KEYS)}")
    if "corrections" not in data:
        raise SchemeError(f"{source}: key 'corrections' is missing")
    if not isinstance(data.get("provenance", {}), dict):
        raise SchemeError(f"{source}: key 'provenance' must be an object")
