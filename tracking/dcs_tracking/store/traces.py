"""Prompts that were sent to models, as MLflow traces of the run of their table."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dcs_tracking import schema
from dcs_tracking.records import PromptRecord

if TYPE_CHECKING:
    from mlflow import MlflowClient

#: Maximum number of traces of a run: what one search returns.
MAX_TRACES = 100

_URI = "MLFLOW_TRACKING_URI"

_exporting = threading.Lock()


def log_traces(
    client: MlflowClient,
    prompts: Sequence[PromptRecord],
    experiment_id: str,
    run_id: str,
    tags: Mapping[str, str],
) -> None:
    """Log prompts as traces of a run.

    Parameters
    ----------
    client : MlflowClient
        Client of an open store.
    prompts : sequence of PromptRecord
        The prompts.
    experiment_id, run_id : str
        The run.
    tags : mapping of str to str
        Tags of each trace.
    """
    with _exporting_to(client.tracking_uri):
        for prompt in prompts:
            start = prompt.started_ms * 1_000_000
            span = client.start_trace(
                "prompt",
                span_type="LLM",
                inputs=dict(prompt.inputs),
                attributes={"label": prompt.label},
                tags={**tags, schema.KIND: schema.KIND_PROMPT},
                experiment_id=experiment_id,
                start_time_ns=start,
                run_id=run_id,
            )
            # The name by which MLflow knows the number of tokens of a trace.
            usage = {"input_tokens": prompt.tokens, "total_tokens": prompt.tokens}
            span.set_attribute("mlflow.chat.tokenUsage", usage)
            end = start + round(1e9 * prompt.seconds)
            client.end_trace(span.trace_id, outputs=dict(prompt.outputs), end_time_ns=end)


@contextmanager
def _exporting_to(tracking_uri: str) -> Iterator[None]:
    """Export traces to a store: MLflow exports them to that of the process, not of a client."""
    import mlflow

    with _exporting:
        # Setting the URI sets the variable too.
        variable = os.environ.pop(_URI, None)
        is_set: bool = mlflow.is_tracking_uri_set()  # type: ignore[no-untyped-call]
        own = mlflow.get_tracking_uri() if is_set else None
        try:
            mlflow.set_tracking_uri(tracking_uri)
            yield
            mlflow.flush_trace_async_logging()
        finally:
            mlflow.set_tracking_uri(own)  # type: ignore[arg-type]
            if variable is not None:
                os.environ[_URI] = variable


def delete_traces(client: MlflowClient, experiment_id: str, run_id: str) -> None:
    """Delete the traces of a run."""
    found = client.search_traces(
        locations=[experiment_id], run_id=run_id, include_spans=False, max_results=MAX_TRACES
    )
    if found:
        client.delete_traces(experiment_id, trace_ids=[trace.info.trace_id for trace in found])
