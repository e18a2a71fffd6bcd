"""``dcs predict``, ``check``, ``shares`` and ``export``: schemes in use."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import dcs
from dcs.errors import ConfigError, SchemeError, show
from dcs_workflows.cli import options, tables
from dcs_workflows.cli.console import console, new_table, progress_bar
from dcs_workflows.cli.options import argument, option

#: Number of rows, or classes, that are listed.
_LISTED = 10

#: Level of the test of a change, confidence of a promise, and the exit code of an alarm.
_ALPHA, _CONFIDENCE, _ALARM = 0.05, 0.95, 3

#: Smaller differences of offsets are rounding.
_LEAST_OFFSET = 1e-9

NewRows = Annotated[
    Path, argument("TABLE", "Class probabilities in any form of dcs tune, labelled or not.")
]


def predict(
    scheme: tables.Scheme,
    texts: Annotated[
        Path,
        argument(
            "TEXTS",
            "Texts in the columns of the task: .csv, .tsv, .jsonl or .parquet; - reads CSV "
            "or JSON lines from standard input.",
        ),
    ],
    output: tables.Written = None,
    model: Annotated[
        str | None, option("MODEL", "Model to use.", show_default="that of the fit")
    ] = None,
    settings: options.Settings = None,
) -> None:
    """Label texts: score them with the model and prompt of a fit, and correct the probabilities.

    Model, engine, task and demonstrations are those of the tables of `dcs generate` that the
    scheme was fitted on; `--set scoring.KEY=VALUE` replaces options. All columns are kept;
    `p:CLASS` are the uncorrected probabilities, `corrected:CLASS` the corrected ones. A row that
    cannot be scored is listed and left out. Scored prompts are stored, so that a stopped run
    continues where it stopped.

    Example: `dcs predict dcs-runs/mood-dcs/scheme.json new.csv -o labels.csv`
    """
    import pandas as pd

    from dcs.data.columns import CORRECTED, PREFIX, Reading
    from dcs.prompting.files import read_texts
    from dcs.scoring.generation import Classifier, ScoredBy
    from dcs_workflows.config.sweep import ScoringConfig, configured
    from dcs_workflows.parallel import one_thread

    correction = dcs.CorrectionScheme.load(scheme)
    known = ScoredBy.of(correction, source=str(scheme)).scoring
    content = {"scoring": dict(known)}
    scoring = configured(ScoringConfig, content, source=f"{scheme}: prompt", sets=settings).scoring
    # Also what is set to its default, which is not that of the fit.
    usual = ScoringConfig().scoring.model_dump() | known
    values = scoring.model_dump(exclude={"store"})
    replaced = {name: value for name, value in values.items() if value != usual.get(name)}
    target = tables.target_of(texts, output, "predicted")
    rows = read_texts(texts, text=sys.stdin.read() if str(texts) == "-" else None)
    added = [start + name for start in (PREFIX, CORRECTED) for name in correction.classes]
    tables.refuse_columns(
        added, {key for row in rows if isinstance(row, dict) for key in row}, texts
    )
    store = scoring.store or Path("dcs-runs") / "shards"
    classifier = Classifier.load(correction, store=store, model=model, **replaced)
    # Rows that are printed must not be mixed with messages.
    console.stderr = str(target) == "-"
    with classifier, one_thread(), progress_bar("scoring prompts", len(rows)) as bar:
        probs, reasons = classifier.score(rows, progress=lambda count: bar(advance=count))
        remarks: list[str] = getattr(classifier.scorer, "report", list)()
    kept = [row for row in range(len(rows)) if row not in reasons]
    for row, reason in [*reasons.items()][:_LISTED]:
        console.print(f"{texts}: row {row + 1}: {reason}")
    if not kept:
        raise ConfigError(f"{texts}: no row could be scored")
    probs = probs[kept]
    frame = pd.DataFrame([rows[row] for row in kept], dtype=object)
    frame[[PREFIX + name for name in correction.classes]] = probs
    tables.write_corrected(frame, target, Reading(), correction, probs)
    missing = f", {len(reasons)} rows left out; with -o {target} the command tries them again"
    console.print(*remarks, f"{target}: {len(kept)} rows{missing if reasons else ''}", sep="\n")
    if str(target) != "-":
        watched = f"dcs check {shlex.quote(str(scheme))} {shlex.quote(str(target))}"
        console.print(f"next: {watched}", style="bold")


def check(
    scheme: tables.Scheme,
    file: NewRows,
    read: options.Read = None,
    tracking_uri: options.FiguresUri = None,
) -> None:
    """Check whether new rows are still those that a scheme was fitted on, and its promise.

    Without labels, one test at the level of 5 % compares class probabilities, predicted shares
    and confidence with those of the fit. With labels, the change of accuracy on these rows is
    compared with the margin that the fit promised, with 95 % confidence. Exit code 3: the rows
    have moved and no labels show that the promise is kept, or labels show that it is broken;
    otherwise 0. With a tracking URI, the figures are a run in the MLflow experiment `checks`.

    Example: `dcs check dcs-runs/mood-dcs/scheme.json labels.csv`
    """
    from dcs.evaluation.drift import compare_rows, describe_rows
    from dcs.evaluation.uncertainty import (
        NonInferiority,
        accuracy_difference,
        design_effect,
        percent,
        sentence_of_chance,
    )
    from dcs.selection.preference import in_points

    correction, rows, reference, held_out = _opened(scheme, file, read)
    probs = rows.probs
    before, after = probs.argmax(axis=1), correction.predict(probs)
    shift, n = compare_rows(reference, probs, after, rows.copies), len(correction.classes)
    then, now = np.array(reference["means"]), describe_rows(probs, after)["means"]
    table = new_table("% of rows ", "probability: fit", "now", "predicted: fit", "now")
    for k in sorted(np.argsort(-np.abs(now - then)[n : 2 * n])[:_LISTED]):
        figures = then[k], now[k], then[n + k], now[n + k]
        table.add_row(correction.classes[k], *map(percent, figures))
    console.print(table)
    moved = shift.p <= _ALPHA
    kinds = ", ".join(f"{name} {sentence_of_chance(p)}" for name, p in shift.kinds.items())
    console.print(
        f"{len(after)} rows {'have moved' if moved else 'show no change'} since the fit "
        f"({sentence_of_chance(shift.p)}; {kinds}); mean confidence {percent(then[-1])} % at the "
        f"fit, {percent(now[-1])} % now; {percent((before != after).mean())} % of the predictions "
        "are changed by the scheme",
        style="bold",
    )
    metrics = {"check/p": shift.p, "check/rows": float(len(after))}
    margin, low, high = held_out.get("margin"), -1.0, 1.0
    if rows.labelled.any():
        from dcs_workflows.study.cell import evidence, predictions

        known = rows.only_labelled()
        labels, plain, corrected = predictions(known, correction)
        found = evidence(None, labels, plain, corrected, n)
        effect = design_effect(known.copies, plain != corrected)
        gained, lost, size = found["gained"] / effect, found["lost"] / effect, labels.size / effect
        low, high = accuracy_difference(gained, lost, size, confidence=2 * _CONFIDENCE - 1)
        metrics |= {"check/change": (gained - lost) / size, "check/change_low": low}
        console.print(
            f"accuracy on {labels.size} labelled rows: {100 * (gained - lost) / size:+.1f} points "
            f"against uncorrected, with {100 * _CONFIDENCE:g} % confidence at least "
            f"{100 * low:+.1f}"
        )
    kept = margin is not None and low >= -margin / 100
    broken = margin is not None and high < -margin / 100
    if margin is None:
        console.print("no accuracy was promised; schemes of --prefer no-harm that correct do so")
    else:
        verdict = "is kept" if kept else "is broken" if broken else "is neither shown nor refuted"
        limit = f"at most {in_points(margin)} points below uncorrected"
        console.print(f"the promise of {limit} {verdict}")
        total = float(np.sum(held_out["confusion"]))
        test = NonInferiority(held_out["gained"], held_out["lost"], total, margin / 100)
        if not (kept or broken) and (needed := test.rows_needed) is not None:
            console.print(
                f"about {float(f'{needed:.2g}'):,.0f} labelled rows, drawn at random, would show "
                "that it is kept, if corrections help as at the fit"
            )
    if tracking_uri is not None:
        from dcs_tracking.store.client import log_check

        log_check(tracking_uri, f"{scheme.resolve().parent.name} {file.name}", metrics)
    if broken or (moved and not kept):
        raise typer.Exit(_ALARM)


def shares(
    scheme: tables.Scheme,
    file: NewRows,
    method: Annotated[
        str,
        option("NAME", "adjusted (counts), or sample (shares are unchanged)."),
    ] = "adjusted",
    read: options.Read = None,
) -> None:
    """Estimate the share of each class among unlabelled rows, with 95 % intervals.

    Predicted shares are corrected by the errors of the scheme on held-out rows of the fit. Rows
    of a class must be alike then and now; only the shares of the classes may differ. If these have
    not changed either, because the labelled rows are a random sample of TABLE, --method sample has
    narrower intervals.

    Example: `dcs shares dcs-runs/mood-dcs/scheme.json labels.csv`
    """
    from dcs.evaluation.quantification import class_shares
    from dcs.evaluation.uncertainty import design_effect, percent

    correction, rows, _, held_out = _opened(scheme, file, read)
    confusion = np.array(held_out["confusion"])
    counts = np.bincount(correction.predict(rows.probs), minlength=len(correction.classes))
    errors, seen = confusion / held_out.get("effect", 1.0), counts / design_effect(rows.copies)
    found = class_shares(errors, seen, classes=correction.classes, method=method)
    table = new_table("class ", "predicted", "share [95 % interval]")
    for name, count, each in zip(correction.classes, counts, found, strict=True):
        interval = percent(each.estimate, interval=(each.low, each.high))
        table.add_row(name, percent(count / counts.sum()), interval)
    console.print(table)
    console.print(f"% of {counts.sum()} rows; errors from {confusion.sum()} held-out rows")


def _opened(
    scheme: Path, file: Path, read: list[str] | None
) -> tuple[dcs.CorrectionScheme, dcs.ProbabilityTable, dict[str, Any], dict[str, Any]]:
    """Return a scheme of one table, rows that it can correct, and what it keeps of its fit.

    Warns of rows of the fit.
    """
    from dcs_workflows.cli.views import warn_of_fitted_rows

    correction = dcs.CorrectionScheme.load(scheme)
    if correction.inputs:
        raise SchemeError(f"{scheme}: is of several tables; only schemes of one are supported")
    reference, held_out = map(correction.provenance.get, ("reference", "held_out"))
    if not (reference and held_out):
        raise SchemeError(
            f"{scheme}: keeps no figures of its fit; fit it again by dcs tune with a new --output"
        )
    (source,) = tables.open_rows([file], options.reading(read), correction).values()
    # Such rows look unchanged, and better corrected than new ones.
    warn_of_fitted_rows(source.table, {scheme: correction})
    return correction, source.table, reference, held_out


def export(
    scheme: tables.Scheme,
    model: Annotated[str | None, option("MODEL", "Model with a local tokenizer.")] = None,
    encoding: Annotated[
        str | None, option("NAME", "Encoding of tiktoken, such as o200k_base.")
    ] = None,
    tokens: Annotated[
        Path | None, option("FILE", 'JSON of first tokens: {"CLASS": [ID, ...], ...}.')
    ] = None,
) -> None:
    """Print a scheme that only adds offsets, as JSON: the `logit_bias` of an API request.

    The model then answers with the corrected label itself. The first token of each label word is
    biased, with and without a space before it: of the words of the prompt that the scheme was
    fitted on, or else of the class names. Without a tokenizer, the offsets of the
    log-probabilities of the classes are printed. Schemes that do more are refused.

    Example: `dcs export runs/a-batch/scheme.json --model Qwen/Qwen3-8B`
    """
    from dcs.prompting.files import described_task
    from dcs.scoring.models import first_tokens

    loaded = dcs.CorrectionScheme.load(scheme)
    try:
        offsets = loaded.offsets
    except SchemeError as error:
        raise SchemeError(f"{scheme}: {error}; {_best_offsets(scheme)}") from None
    if np.ptp(offsets) < _LEAST_OFFSET:
        raise SchemeError(f"{scheme}: all offsets are equal, and would change nothing")
    words = dict(zip(loaded.classes, loaded.classes, strict=True))
    table = loaded.provenance.get("table", {})
    if loaded.inputs:
        table = loaded.provenance.get("tables", {}).get(loaded.inputs[0], {})
    if prompt := table.get("prompt"):
        task = described_task(prompt["task"], source=f"{scheme}: prompt")
        words |= zip(task.classes, task.label_words, strict=True)
    if sum(each is not None for each in (model, encoding, tokens)) > 1:
        raise ConfigError("--model, --encoding, --tokens: give one of them")
    if tokens is not None:
        ids = _tokens_of(tokens, loaded.classes)
    elif model is None and encoding is None:
        typer.echo(json.dumps({"offsets": dict(zip(loaded.classes, offsets, strict=True))}))
        return
    else:
        first = [words[name] for name in loaded.classes]
        ids = first_tokens(first, model=model, encoding=encoding)
    biases: dict[str, float] = {}
    for name, own, offset in zip(loaded.classes, ids, offsets.tolist(), strict=True):
        for token in dict.fromkeys(map(str, own)):
            if token in biases:
                raise ConfigError(
                    f"class {show(name)} begins with token {token}, as another one does; give "
                    "different ones by --tokens"
                )
            # The limits of the API; only differences matter.
            biases[token] = round(float(np.clip(offset, -100.0, 100.0)), 4)
    typer.echo(json.dumps({"logit_bias": biases}))


def _tokens_of(file: Path, classes: Sequence[str]) -> list[list[int]]:
    """Return the first tokens of each class that a file lists."""
    from dcs.io import read_json

    given = read_json(file, error=ConfigError)
    found = given if isinstance(given, dict) else {}
    for name in classes:
        ids = found.get(name)
        known = isinstance(ids, list) and all(type(each) is int and each >= 0 for each in ids)
        if not (known and ids):
            raise ConfigError(f"{file}: key {show(name)}: must be a list of token ids, 0 or above")
    return [found[name] for name in classes]


def _best_offsets(scheme: Path) -> str:
    """Return what the best scheme of a front that only adds offsets would cost."""
    file = scheme.with_name(tables.FRONT)
    front = dcs.FittedScheme.load(file) if file.exists() else None
    if front is None or (best := front.pick(dcs.Preference("offsets")).chosen) is front.plain:
        return "use dcs apply, or fit by dcs tune --prefer offsets"
    costs, now = (
        f"{100 * point.accuracy:.1f} / {100 * point.lasting_cobias:.1f}"
        for point in (best, front.chosen)
    )
    picked = f"dcs pick {shlex.quote(str(scheme.parent))} --prefer offsets"
    return f"offsets: {costs} instead of {now}: {picked}"
