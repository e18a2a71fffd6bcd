"""Tables of one's own tuned on this machine: the sweep of one source that `dcs tune` is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError
from dcs.io import validated
from dcs.selection.methods import get_method
from workflows.config.sweep import SweepConfig, TuneConfig
from workflows.plan import SweepPlan, plan_sweep
from workflows.tables import Rows, join_unlabelled

#: Share of the rows that is held out for the final figures when no test table is given.
HELD_OUT = 0.3

#: Most classes that an exhaustive search can cope with.
_MOST_CERTIFIED = 4

#: Labelled rows of a learning curve.
_CURVE_SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)


def called(paths: Sequence[Path]) -> dict[str, Path]:
    """Return paths by the name of the file, or by the words of the path where two are alike.

    The names become parts of file names.

    Raises
    ------
    ConfigError
        A path is given twice.
    """
    names = [path.name if path.is_dir() else path.stem for path in paths]
    if len({*names}) < len(names):
        names = [re.sub(r"[^\w.-]+", "-", str(path.with_suffix(""))) for path in paths]
    found = dict(zip(names, paths, strict=True))
    if len(found) < len(paths):
        raise ConfigError(f"{', '.join(names)}: one is given twice; each table once")
    return found


def plan_tuning(
    tables: Mapping[str, Path],
    output: Path,
    *,
    config: TuneConfig,
    methods: Sequence[str],
    seed: int,
    test: Sequence[Path] = (),
    unlabelled: Sequence[Path] = (),
    refit: bool = False,
    learning_curve: bool = False,
    certify: bool = False,
) -> tuple[SweepPlan, dict[str, Rows]]:
    """Return what there is to compute for tables of the same rows, and these rows by split.

    Parameters
    ----------
    tables : mapping of str to path
        Sources of tables, by what they are called.
    output : pathlib.Path
        The folder of results.
    config : TuneConfig
        How schemes are searched.
    methods : sequence of str
        The one that is asked for, and those that it is compared with.
    seed : int
        Root seed.
    test, unlabelled : sequence of path
        None, or for each table that of the test rows, and one of rows without labels.
    refit, learning_curve, certify : bool
        What is wanted besides; refused where it is not possible.

    Raises
    ------
    DCSError
        A table cannot be read, or what is wanted does not go together.
    """
    for option, given in (("--test", test), ("--unlabelled", unlabelled)):
        if given and len(given) != len(tables):
            raise ConfigError(
                f"{option}: {len(given)} given for {len(tables)} tables; give one for each, in "
                "the same order, or none"
            )
    choices: dict[str, Any] = {}
    for i, (name, table) in enumerate(tables.items()):
        choice = (str(table), str(test[i])) if test else str(table)
        if unlabelled:
            choice = join_unlabelled(choice, unlabelled[i], output / "joined" / f"{name}.parquet")
        choices[name] = choice
    content = {
        "name": "tune",
        "tables": [choices] if len(choices) > 1 else [*choices.values()],
        "held_out": HELD_OUT,
        "methods": [*dict.fromkeys(("icl", *methods))],
        "seeds": [seed],
        **dict(config),
    }
    sweep = validated(SweepConfig, content, source="command line", error=ConfigError)
    plan = plan_sweep(sweep, output, retry_failed=True)
    (key,) = plan.cells
    rows = plan.read(key)
    fitted = rows["optimization"]
    is_study, is_one = config.tuner.protocol == "study", isinstance(fitted, ProbabilityTable)
    is_small = is_one and fitted.n_classes <= _MOST_CERTIFIED
    if certify and not (is_study and is_small and get_method(methods[0]).searches):
        raise ConfigError(
            f"--certify: {methods[0]} on {len(tables)} tables with {fitted.n_classes} classes; it "
            "proves the one search of a study (--set tuner.protocol=study) with dcs, dnip or "
            f"furud, of one table with up to {_MOST_CERTIFIED} classes; leave it out otherwise"
        )
    if refit and (is_study or not is_one):
        raise ConfigError(
            "--refit fits again what cross-validation chose of one table; leave it out, or "
            "tuner.protocol=study, or give one table"
        )
    if learning_curve:
        labelled = int(fitted.labelled.sum())
        sizes = [size for size in _CURVE_SIZES if size < labelled]
        if not sizes:
            raise ConfigError(
                f"--learning-curve: {labelled} labelled rows to fit on; more than "
                f"{_CURVE_SIZES[0]} are needed"
            )
        axes = {"keep_unlabelled": (False, True)}
        curve = {"optimization_sizes": (*sizes, "full"), "axes": axes}
        plan = plan_sweep(sweep.model_copy(update=curve), output, retry_failed=True)
    return plan, rows
