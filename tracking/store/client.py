"""Finds experiments, runs and artifacts in a store, and says in one line what is in the way."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from filelock import FileLock

from dcs.errors import ConfigError, TrackingError, one_line, show, suggest
from dcs.errors import redact as redact_text
from dcs.io import atomic_path
from tracking import schema
from tracking.records import write_files

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

_DATABASES = ("postgresql", "mysql", "mssql")

#: Where `dcs ui` and `mlflow ui` listen by default.
LOCAL_UI = "http://127.0.0.1:5000"

#: MLflow opens an experiment in its pages for language models otherwise.
_CLASSICAL = "workflowType=machine_learning"

_CONNECT_SECONDS = 3.0

_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}

# MLflow waits minutes by default (7 retries of 120 s with backoff); the archive makes that
# patience needless. A user's own settings of these win.
_REQUEST_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}

# What tells of first use of a database and of retries; failures are reported by us.
_LEVELS = {
    "alembic.runtime.migration": logging.WARNING,
    "mlflow.pyfunc": logging.WARNING,
    "mlflow.store.db.utils": logging.WARNING,
    "mlflow.tracking.client": logging.ERROR,
    "mlflow.utils.rest_utils": logging.ERROR,
    "urllib3.connectionpool": logging.ERROR,
}


class StoreUnavailable(TrackingError):
    """The tracking store does not answer, or does not let us in."""


def default_tracking_uri(output: Path | str) -> str:
    """Return the URI of the SQLite file ``mlflow.db`` in the folder `output`.

    Parameters
    ----------
    output : path-like
        The folder of a sweep's results.

    Returns
    -------
    str
        With an absolute path.
    """
    return _sqlite_uri(Path(output).absolute() / "mlflow.db")


def resolve_tracking_uri(uri: str | None, output: Path | str) -> str:
    """Check a tracking URI and make it independent of the working directory.

    Parameters
    ----------
    uri : str or None
        A tracking URI; None for the default store of `output`.
    output : path-like
        The folder of the sweep's results.

    Returns
    -------
    str
        The URI, with an absolute path if it is a SQLite file.

    Raises
    ------
    dcs.errors.ConfigError
        For a file store, an in-memory database or an unknown scheme.
    """
    if uri is None:
        return default_tracking_uri(output)
    scheme, _, rest = uri.partition("://")
    base = scheme.lower().partition("+")[0]
    if base in ("databricks", "http", "https", *_DATABASES) and (rest or base == "databricks"):
        return uri.rstrip("/")
    path = rest.removeprefix("/")
    if base == "sqlite" and path and ":memory:" not in path:
        return f"{scheme}:///{Path(path).absolute()}"
    raise ConfigError(
        f"tracking URI {uri!r} is no store that keeps runs, as a folder or a database in memory "
        "is none; use sqlite:////ABSOLUTE/PATH.db, http://HOST:PORT of an `mlflow server`, or a "
        "postgresql/mysql/mssql URI"
    )


def redact(uri: str) -> str:
    """Return `uri` without passwords and tokens, fit for files and messages."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    shown = uri
    if not uri.startswith(("http://", "https://", "sqlite")):
        with suppress(ArgumentError, ValueError):
            shown = make_url(uri).render_as_string(hide_password=True)
    return redact_text(shown, environment=False)


def ui_arguments(uri: str, *, port: int = 5000) -> list[str]:
    """Return the command that opens MLflow's pages on a store that has no server of its own.

    Parameters
    ----------
    uri : str
        The store.
    port : int
        Where the pages are to be, on this machine alone.

    Returns
    -------
    list of str
        The command and its arguments.

    Raises
    ------
    dcs.errors.ConfigError
        For a server, which has its own pages.
    """
    if has_server(uri):
        raise ConfigError(f"{redact(uri)} is a server with pages of its own; open it in a browser")
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri]
    # Without a line for every picture that the browser asks for.
    command += ["--uvicorn-opts", "--log-level warning"]
    return [*command, "--host", "127.0.0.1", "--port", str(port)]


def pages(tracking_uri: str, ui: str | None = None) -> str:
    """Return what the addresses of MLflow's pages on a store begin with; `ui` as of `run_link`."""
    base = ui or (tracking_uri if has_server(tracking_uri) else LOCAL_UI)
    if not base.lower().startswith(("http://", "https://", "databricks")):
        raise ConfigError(f"--ui {show(base)}: write http:// or https:// and where MLflow is")
    # Who opens a link logs in by the browser, and links are shown to others.
    place = re.sub(r"^(\w+://)[^/]*@", r"\1", base)
    return f"{place.rstrip('/')}/#"


def run_link(tracking_uri: str, run: Any, *, ui: str | None = None) -> str:
    """Return the address of a run's page in MLflow.

    Parameters
    ----------
    tracking_uri : str
        The store; a server has pages of its own.
    run : object
        Has a ``run_id`` and an ``experiment_id``: a stored cell, or the ``info`` of a run.
    ui : str, optional
        Where MLflow's pages of a store without a server are; by default those of `dcs ui`.

    Raises
    ------
    dcs.errors.ConfigError
        `ui` is no address of a page.
    """
    place = f"{pages(tracking_uri, ui)}/experiments/{run.experiment_id}"
    return f"{place}/runs/{run.run_id}?{_CLASSICAL}"


def cells_link(tracking_uri: str, experiment_id: str, *, ui: str) -> str:
    """Return the address of the page with the cells of an experiment; see `run_link`."""
    view = f"{_CLASSICAL}&viewStateShareKey={schema.VIEW}"
    return f"{pages(tracking_uri, ui)}/experiments/{experiment_id}/runs?{view}"


def has_server(uri: str) -> bool:
    """Whether a server of MLflow stands before the store, with pages of its own."""
    return uri.startswith(("http://", "https://", "databricks"))


def _sqlite_uri(path: Path) -> str:
    """Return the URI of a SQLite file, with the characters escaped that SQLAlchemy interprets."""
    return "sqlite:///" + str(path).replace("%", "%25").replace("?", "%3F")


def _sqlite_path(uri: str) -> Path | None:
    """Return the file of a SQLite store; None for any other store."""
    from sqlalchemy.engine import make_url

    return Path(str(make_url(uri).database)) if uri.startswith("sqlite") else None


def _artifact_location(uri: str, output: Path, experiment: str) -> str | None:
    """Return where the artifacts of a new experiment go; None leaves it to the server.

    A bare database has no place for files, and MLflow would take the working directory.
    """
    if has_server(uri):
        return None
    file = _sqlite_path(uri)
    folder = file.parent if file else output.absolute()
    name = re.sub(r"[^\w.-]+", "_", experiment).strip("._") or "experiment"
    return (folder / "mlartifacts" / name[:80]).as_uri()


def open_client(uri: str, *, create: bool = True) -> MlflowClient:
    """Open a store; with `create` a new SQLite file is made ready where needed.

    Raises
    ------
    StoreUnavailable
        Nothing answers there, with the reason in one line.
    """
    client_class = load_client_class()
    try:
        _check_reachable(uri)
        if file := _sqlite_path(uri):
            if create:
                _make_sqlite(file, client_class)
            elif not file.is_file():
                raise FileNotFoundError(f"{file}: no such database")
        client: MlflowClient = client_class(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
    except Exception as error:  # MLflow, SQLAlchemy, requests: all mean the same to us.
        raise StoreUnavailable(one_line(error)) from error
    return client


def _make_sqlite(path: Path, client_class: type[MlflowClient]) -> None:
    """Make a new SQLite file whole or not at all, and never in the place of another.

    MLflow makes its tables in dozens of steps, which takes seconds; were it killed among them, no
    version of it could open the file again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Another sweep in this folder may be making it.
    with FileLock(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            with atomic_path(path) as whole:
                client_class(tracking_uri=_sqlite_uri(whole)).search_experiments(max_results=1)


def load_client_class() -> type[MlflowClient]:
    """Import MLflow (about a second): without usage reports unless asked for, and quiet."""
    if "mlflow" not in sys.modules:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    for name, value in _REQUEST_SETTINGS.items():
        os.environ.setdefault(name, value)
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
    # The models of schemes need pyfunc, and a thread that imports it races with other imports.
    from mlflow import MlflowClient, pyfunc  # noqa: F401

    _acknowledge_at_once()
    return MlflowClient


@cache
def _acknowledge_at_once() -> None:
    """Have the answers of HTTP servers acknowledged at once, where the system can.

    A worker of `mlflow server` sends head and body of an answer one after the other, and keeps
    the body back until the head is acknowledged. On a connection that is kept open Linux would
    wait 40 ms with that, at every request.
    """
    from urllib3.connection import HTTPConnection
    from urllib3.connectionpool import HTTPConnectionPool
    from urllib3.response import HTTPResponse

    class Connection(HTTPConnection):
        def getresponse(self) -> HTTPResponse:  # type: ignore[override]
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            return super().getresponse()

    if hasattr(socket, "TCP_QUICKACK"):
        HTTPConnectionPool.ConnectionCls = Connection


def _check_reachable(uri: str) -> None:
    """Fail within seconds, without a TCP connection, where MLflow would retry for minutes."""
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError:
        # The reason would quote a part of the password.
        raise ConfigError(
            f"{redact(uri)} is no address; write HOST:PORT, and the special characters of a "
            "password as %2F and so on"
        ) from None
    kind = parts.scheme.partition("+")[0]
    if not host or kind not in _PORTS:
        return  # A file, or a database on this machine over a socket that its driver knows.
    if kind in getproxies() and not proxy_bypass(host):
        return  # Only the request itself can tell.
    socket.create_connection((host, port or _PORTS[kind]), timeout=_CONNECT_SECONDS).close()


def open_store(tracking_uri: str, *, create: bool = False) -> MlflowClient:
    """Open a store as `open_client` does, or say which one cannot be opened."""
    uri = resolve_tracking_uri(tracking_uri, ".")
    try:
        return open_client(uri, create=create)
    except StoreUnavailable as error:
        raise StoreUnavailable(f"tracking store {redact(uri)} cannot be used: {error}") from error


def open_experiment(tracking_uri: str, name: str) -> tuple[MlflowClient, str]:
    """Open a store, and return it with the id of one of its experiments."""
    client = open_store(tracking_uri)
    found = client.get_experiment_by_name(name)
    if found is None:
        known = [item.name for item in client.search_experiments()]
        raise TrackingError(
            f"there is no experiment {name!r}{suggest(name, known)}; there are: {', '.join(known)}"
        )
    _check_active(found)
    return client, str(found.experiment_id)


def make_experiment(
    client: MlflowClient, name: str, output: Path, tags: dict[str, Any] | None = None
) -> Experiment:
    """Return an experiment of a store, made where there is none.

    Raises
    ------
    StoreUnavailable
        It was deleted in the store.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        place = _artifact_location(client.tracking_uri, output, name)
        try:
            experiment = client.get_experiment(client.create_experiment(name, place, tags))
        except Exception:
            # Another driver may have been faster; otherwise the reason is said by the caller.
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    _check_active(experiment)
    return experiment


def _check_active(experiment: Experiment) -> None:
    """Refuse an experiment that was deleted, and say how to get it back."""
    if experiment.lifecycle_stage != "active":
        raise StoreUnavailable(
            f"experiment {experiment.name!r} is deleted there; restore it with `mlflow "
            f"experiments restore --experiment-id {experiment.experiment_id}` or choose another "
            "name"
        )


def search_runs(
    client: MlflowClient, experiment_id: str, where: str, *, deleted: bool = False
) -> Iterator[Run]:
    """Yield the runs of an experiment that fulfil a condition, oldest first."""
    from mlflow.entities import ViewType

    view = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY
    oldest_first = ["attributes.start_time ASC"]
    token: str | None = None
    while True:
        page = client.search_runs([experiment_id], where, view, 1000, oldest_first, token)
        yield from page
        if not (token := page.token):
            return


def log_files(tracking_uri: str, place: str, files: Mapping[str, str | bytes]) -> None:
    """Keep files of a run, by their paths in its folder of artifacts."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    # MLflow's client would ask the store where they go.
    repository = get_artifact_repository(place, tracking_uri=tracking_uri)
    with tempfile.TemporaryDirectory(prefix="dcs-") as folder:
        write_files(Path(folder), files)
        repository.log_artifacts(folder)  # type: ignore[no-untyped-call]
