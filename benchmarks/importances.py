"""Importance of every tuned parameter, compared with parameters that have no effect.

    python -m benchmarks.importances run FILE TABLE ... [--sweep quickstart] [--seeds 10]
    python -m benchmarks.importances table FILE

Each study has the search space of a packaged sweep and two parameters that nothing reads. The
importances are those of PED-ANOVA for each objective, without the standard settings, whose values
are not drawn. A parameter counts on a table if its importance exceeds that of `dummy`, paired by
seed, by a one-sided 95 % t-test. `control` tells how often that happens by chance.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
import optuna
import pandas as pd
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from scipy.stats import ttest_1samp

from benchmarks.results import markdown_table
from dcs.data.reader import open_sources
from dcs.methods.parameters import PARAMETERS
from dcs.selection.compare import SelectionSettings, standard_settings
from dcs.selection.fitting import Fitting
from dcs.selection.methods import get_method
from dcs_workflows.config.sweep import load_config, packaged_config
from dcs_workflows.parallel import one_thread
from dcs_workflows.sources.given import source_name
from dcs_workflows.study.study import OBJECTIVES, SearchSpace, make_sampler

#: The parameters that the tuner is there for, in the order of the table.
KNOBS: Final = tuple(
    row.name for row in PARAMETERS if len(row.values) == 2 and not isinstance(row.values[0], str)
)
DUMMY, CONTROL = "dummy", "control"
_LEVEL: Final = 0.05
#: Share of the trials that count as good, as in the importances of a cell.
_GOOD_SHARE: Final = 0.25


@one_thread()
def study_importances(
    path: Path, *, sweep: str, seed: int, trials: int
) -> dict[str, dict[str, float]]:
    """Run a study on all rows of a table; return the importances by objective and parameter."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    table = open_sources(path)["optimization"].table
    settings = load_config(packaged_config(sweep)).tuner
    judge = settings.judge
    fitting = Fitting(
        table.probs, table.labels, judge.folds, development=judge.development, seed=seed
    )
    method = get_method("dcs")
    standard = standard_settings(SelectionSettings(), table.n_classes)
    space = SearchSpace(settings, method, standard, n_rows=table.n_rows)
    study = optuna.create_study(
        directions=[*OBJECTIVES.values()],
        sampler=make_sampler(settings.sampler, seed=seed, trials=trials),
    )
    for _ in range(trials):
        trial = study.ask()
        for name in (DUMMY, CONTROL):
            trial.suggest_float(name, 0.0, 1.0)
        (fit,) = fitting.judge([space.suggest(trial)])
        study.tell(trial, [getattr(fit, name) for name in OBJECTIVES])
    evaluator = PedAnovaImportanceEvaluator(target_quantile=_GOOD_SHARE)
    found = {}
    for i, (name, direction) in enumerate(OBJECTIVES.items()):
        # Of a function of the values, the evaluator takes lower ones as better.
        sign = 1.0 if direction == "minimize" else -1.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found[name] = get_param_importances(
                study,
                evaluator=evaluator,
                target=lambda trial, i=i, sign=sign: sign * trial.values[i],
            )
    return found


def run(file: Path, tables: list[Path], *, sweep: str, seeds: int, trials: int) -> None:
    """Append the importances of the tables and seeds that the file lacks."""
    lines = file.read_text().splitlines() if file.exists() else []
    known = {(each["sweep"], each["table"], each["seed"]) for each in map(json.loads, lines)}
    for path in tables:
        clock, about = time.perf_counter(), {"sweep": sweep, "table": source_name(path)}
        for seed in range(seeds):
            if (sweep, about["table"], seed) not in known:
                found = study_importances(path, sweep=sweep, seed=seed, trials=trials)
                with file.open("a") as out:
                    out.write(json.dumps({**about, "seed": seed, "importances": found}) + "\n")
        print(f"{about['table']}, {sweep}: {time.perf_counter() - clock:.0f} s")


def exceeding(file: Path) -> pd.DataFrame:
    """Return, by sweep, table, objective and parameter, how far it exceeds the dummy.

    The columns are the mean importance, that of the dummy, the p-value of the difference over the
    seeds, and whether it is below the level.
    """
    rows: list[dict[str, Any]] = []
    for line in file.read_text().splitlines():
        each = json.loads(line)
        for objective, shares in each["importances"].items():
            about = {"sweep": each["sweep"], "table": each["table"], "objective": objective}
            rows += [
                {**about, "parameter": name, "share": share, "dummy": shares[DUMMY]}
                for name, share in shares.items()
                if name != DUMMY
            ]
    found = []
    for names, own in pd.DataFrame(rows).groupby(["sweep", "table", "objective", "parameter"]):
        above = np.array(own["share"] - own["dummy"])
        p = float(ttest_1samp(above, 0.0, alternative="greater").pvalue) if above.any() else 1.0
        about = dict(zip(("sweep", "table", "objective", "parameter"), names, strict=True))
        means = {"share": own["share"].mean(), "dummy": own["dummy"].mean()}
        found.append({**about, **means, "p": p, "exceeds": p < _LEVEL, "seeds": len(own)})
    return pd.DataFrame(found)


def table(file: Path) -> str:
    """Return on how many tables each parameter exceeds the dummy, by objective and for any."""
    cells, parts = exceeding(file), []
    for sweep, own in cells.groupby("sweep", sort=False):
        n_tables, seeds = own["table"].nunique(), own["seeds"].min()
        varied = {*own.loc[own["share"] > 0.0, "parameter"]}
        rows = []
        for name in (*KNOBS, *sorted(varied - {*KNOBS, CONTROL}), CONTROL):
            some, row = own[own["parameter"] == name], [f"`{name}`"]
            for objective in OBJECTIVES:
                one = some[some["objective"] == objective]
                ratio = one["share"].sum() / one["dummy"].sum()
                row.append(f"{one['exceeds'].sum()} ({ratio:.1f})")
            row.append(str(some.groupby("table")["exceeds"].any().sum()))
            rows.append(row)
        head = ["parameter", *OBJECTIVES, "any objective"]
        parts.append(
            f"`{sweep}`: number of {n_tables} tables, {seeds} seeds; in brackets the importance "
            f"as a multiple of the dummy's\n\n{markdown_table(head, rows)}"
        )
    return "\n\n".join(parts)


def main() -> None:
    """Run studies or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["run", "table"])
    parser.add_argument("file", type=Path)
    parser.add_argument("tables", type=Path, nargs="*")
    parser.add_argument("--sweep", default="quickstart", help="packaged sweep with the space")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=128)
    options = parser.parse_args()
    if options.part == "table":
        print(table(options.file))
        return
    amount = {"seeds": options.seeds, "trials": options.trials}
    run(options.file, options.tables, sweep=options.sweep, **amount)


if __name__ == "__main__":
    main()
