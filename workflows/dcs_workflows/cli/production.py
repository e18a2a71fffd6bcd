"""``dcs predict``, ``check``, ``shares`` and ``export``: schemes in use."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import dcs
from dcs.errors import ConfigError, SchemeError, show
from dcs_workflows.cli import options
from dcs_workflows.cli.console import console, progress_bar
from dcs_workflows.cli.tables import Scheme, target_of, write_rows

#: Rows that could not be scored, of which so many are listed.
_LISTED = 10


def predict(
    scheme: Scheme,
    texts: Annotated[
        Path,
        typer.Argument(
            metavar="TEXTS",
            help="Texts in the columns of the task: .csv, .tsv, .jsonl or .parquet; - reads CSV "
            "or JSON lines from standard input.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write: .parquet, .csv, .tsv or .jsonl; - prints CSV.",
            show_default="TEXTS-predicted, in the format of TEXTS",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Model to use.", show_default="that of the fit"),
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
    from dcs.scoring.classifier import Classifier, ScoredBy
    from dcs_workflows.config.sweep import ScoringConfig, configured
    from dcs_workflows.parallel import one_thread

    correction = dcs.CorrectionScheme.load(scheme)
    scored_by = ScoredBy.of(correction, source=str(scheme))
    content = {"scoring": dict(scored_by[0].scoring)}
    chosen = configured(ScoringConfig, content, source=f"{scheme}: prompt", sets=settings or ())
    given = {each.partition("=")[0].strip() for each in settings or ()}
    values: dict[str, Any] = {"engine": chosen.scoring.engine, **chosen.scoring.options}
    replaced = {name: value for name, value in values.items() if f"scoring.{name}" in given}
    target = target_of(texts, "predicted") if output is None else output
    rows = read_texts(texts, text=sys.stdin.read() if str(texts) == "-" else None)
    if model is not None:
        replaced["model"] = model
    store = chosen.scoring.store or Path("dcs-runs") / "shards"
    classifier = Classifier.load(correction, store=store, **replaced)
    # Rows that are printed must not be mixed with messages.
    tell = partial(typer.echo, err=True) if str(target) == "-" else console.print
    with classifier, one_thread(), ExitStack() as shown:
        progress = None
        if str(target) != "-":
            total = len(rows) * len(scored_by)
            progress = shown.enter_context(progress_bar("scoring prompts", total))
        probs, reasons = classifier.score(
            rows, progress=progress and (lambda n: progress(advance=n))
        )
        remarks = classifier.report()
    kept = [row for row in range(len(rows)) if row not in reasons]
    for row, reason in [*reasons.items()][:_LISTED]:
        tell(f"{texts}: row {row + 1}: {reason}")
    if len(reasons) > _LISTED:
        tell(f"and {len(reasons) - _LISTED} more rows")
    if not kept:
        raise ConfigError(f"{texts}: no row could be scored")
    inputs = classifier.inputs(probs[..., kept, :])
    frame = pd.DataFrame([rows[row] for row in kept])
    columns = {PREFIX: inputs, CORRECTED: correction.apply(inputs)}
    for prefix, values in columns.items():
        if values.ndim == 2:  # of several tables the corrected ones only
            for k, name in enumerate(correction.classes):
                frame[prefix + name] = values[:, k]
    frame["predicted"] = [correction.classes[k] for k in correction.predict(inputs)]
    write_rows(frame, target, Reading(), "predicted")
    missing = f", {len(reasons)} rows left out; the same command tries them again"
    for line in (*remarks, f"{target}: {len(kept)} rows{missing if reasons else ''}"):
        tell(line)
    if str(target) != "-":
        watched = f"dcs check {shlex.quote(str(scheme))} {shlex.quote(str(target))}"
        console.print(f"next: {watched}", style="bold")


def export(
    scheme: Scheme,
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="Model whose tokens are biased.")
    ],
    label_words: Annotated[
        Any,
        typer.Option(
            parser=options.names,
            metavar="A,B,...",
            help="Label word of each class, in the order of the scheme.",
            show_default="the class names",
        ),
    ] = None,
    logit_bias: Annotated[
        bool, typer.Option("--logit-bias", help="Print token biases: the only format, required.")
    ] = False,
) -> None:
    """Print a scheme that only adds offsets as the `logit_bias` of an API request.

    The model then answers with the corrected label itself. Schemes of the methods batch and
    prior are of this kind, and weights without calibration; others are refused.

    Example: `dcs export runs/a-batch/scheme.json --logit-bias --model Qwen/Qwen3-8B`
    """
    from dcs.scoring.labels import read_label_words
    from dcs.scoring.models import load_tokenizer

    if not logit_bias:
        raise ConfigError("dcs export: give the format, --logit-bias")
    loaded = dcs.CorrectionScheme.load(scheme)
    try:
        offsets = loaded.offsets
    except SchemeError as error:
        raise SchemeError(
            f"{scheme}: cannot be token biases: {error}; use dcs apply, or tune "
            "with --method batch"
        ) from None
    words = label_words or list(loaded.classes)
    if len(words) != len(loaded.classes):
        raise ConfigError(f"--label-words {show(words)}: must be {len(loaded.classes)} words")
    tokenizer = load_tokenizer(model)
    # In a chat, no space precedes the answer.
    spaced = words if tokenizer.template else [" " + word for word in words]
    tokens, _ = read_label_words(tokenizer, "Answer:", spaced, "first")
    # The limits of the API; only differences matter.
    biases = np.clip(offsets, -100.0, 100.0).round(4)
    found = {str(ids[0]): bias for ids, bias in zip(tokens, biases.tolist(), strict=True)}
    typer.echo(json.dumps({"logit_bias": found}))
