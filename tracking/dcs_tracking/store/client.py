"""Access to experiments, runs and artifacts of a tracking store, with one-line errors."""

from __future__ import annotations

import logging
import os
import re
import shlex
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass, url2pathname

from filelock import FileLock

from dcs.errors import ConfigError, TrackingError, one_line, redact
from dcs.io import atomic_path
from dcs_tracking.store.views import CLASSICAL

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

T = TypeVar("T")

#: The default address of `dcs ui` and `mlflow ui`.
LOCAL_UI = "http://127.0.0.1:5000"

_CONNECT_SECONDS = 3.0

#: Default ports of the stores that are not files.
_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}

# MLflow waits for minutes by default (7 retries of 120 s with backoff), which is not needed since
# every record is in the archive. User-specified values take precedence.
_REQUEST_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_TRACKING_AUTH": "dcs-limits",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}

#: Runs of a page of a search. A thousand take 40 MB while they are read, for good in each thread.
_PAGE = 100
#: Times the timeout of a request that the first answer of a server may take, with retries.
_FIRST_ANSWER = 10

# Silence messages on the first use of a database and on retries; failures are reported here.
_LOGGERS = {
    logging.WARNING: ("alembic.runtime.migration", "mlflow.pyfunc"),
    logging.ERROR: ("mlflow.tracking.client", "mlflow.utils.rest_utils", "urllib3.connectionpool"),
    # It logs a traceback for each error of a database, which is raised anyway.
    logging.CRITICAL: ("mlflow.store.db.utils",),
}


def timeout() -> float:
    """Return the seconds that MLflow waits for a part of an answer."""
    return float(os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT") or 10.0)


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call returns, unless it takes longer; it then goes on in its thread.

    Raises
    ------
    TimeoutError
        Raised if it takes longer.
    """
    with ThreadPool(1) as pool:  # Its threads are daemons, and are not waited for at the end.
        answer = pool.apply_async(call)
        answer.wait(seconds)
        if not answer.ready():
            raise TimeoutError(f"the server has not answered completely for {seconds:.0f} s")
        return answer.get()


#: Name of the SQLite file of an output folder, which may be moved with it.
DEFAULT = "default"


#: What SQLAlchemy adds to the error of a driver: its class before, the statement after.
_DRIVER = r"\((?:sqlite3|psycopg2?|MySQLdb|pymysql|pyodbc)\.[\w.]+\) "
_DRIVER_OR_SQL = re.compile(rf"{_DRIVER}| ?(\[SQL: |\(Background on this error).*")


def reason_of(error: BaseException) -> str:
    """Return why a store failed in one line: without the SQL of a statement that failed."""
    return _DRIVER_OR_SQL.sub("", one_line(error))


def default_tracking_uri(output: Path | str) -> str:
    """Return the URI of the SQLite file ``mlflow.db`` in the folder `output`.

    Parameters
    ----------
    output : path-like
        Output folder of a sweep.

    Returns
    -------
    str
        The URI, with an absolute path.
    """
    return _sqlite_uri(Path(output).absolute() / "mlflow.db")


def resolve_tracking_uri(uri: str | None, output: Path | str) -> str:
    """Check a tracking URI and make it independent of the working directory.

    Parameters
    ----------
    uri : str or None
        A tracking URI; None for the default store of `output`.
    output : path-like
        Output folder of the sweep.

    Returns
    -------
    str
        The URI, with an absolute path if it is a SQLite file.

    Raises
    ------
    dcs.errors.ConfigError
        Raised for a file store, an in-memory database or an unknown scheme.
    """
    if uri is None:
        return default_tracking_uri(output)
    scheme, _, rest = uri.partition("://")
    base = scheme.lower().partition("+")[0]
    if base == "databricks" or (base in _PORTS and rest):
        return uri.rstrip("/")
    path = rest.removeprefix("/")
    if base == "sqlite" and path and ":memory:" not in path:
        return f"{scheme}:///{Path(path).absolute()}"
    raise ConfigError(
        f"tracking URI {uri!r} is not a persistent store; folders and in-memory databases "
        "are not supported, use sqlite:////ABSOLUTE/PATH.db, http://HOST:PORT of an `mlflow "
        "server`, or a postgresql/mysql/mssql URI"
    )


def store_name(uri: str, output: Path | str) -> str:
    """Return the name of a store in the files of an output folder, which has no password."""
    return DEFAULT if uri == default_tracking_uri(output) else redact_uri(uri)


def redact_uri(uri: str) -> str:
    """Return `uri` without passwords and tokens, for files and messages."""
    # The password of a database may have characters that those of servers may not have.
    shown = uri if has_server(uri) else re.sub(r"(://[^:/@]*:)[^@]*@", r"\1***@", uri)
    return redact(shown, environment=False)


def ui_arguments(uri: str, *, port: int = 5000) -> list[str]:
    """Return the command that starts the MLflow UI for a store without a server.

    The store is to be in its environment, as ``MLFLOW_BACKEND_STORE_URI``: other users of the
    machine can see the arguments of a process.

    Parameters
    ----------
    uri : str
        Tracking URI of the store.
    port : int
        Port to listen on; only this machine can connect to it.

    Raises
    ------
    dcs.errors.ConfigError
        Raised for a server, which has its own UI.
    """
    if has_server(uri):
        raise ConfigError(f"{redact_uri(uri)} is a server with its own UI; open it in a browser")
    # Do not log every request of the browser, nor import modules of the current folder.
    options = ["--log-level", "warning", "--app-dir", sysconfig.get_path("purelib")]
    command = [sys.executable, "-m", "mlflow", "ui", "--uvicorn-opts", shlex.join(options)]
    return [*command, "--host", "127.0.0.1", "--port", str(port)]


def pages(tracking_uri: str) -> str:
    """Return the base URL of the MLflow UI of a store: the server, or a `dcs ui`."""
    base = tracking_uri if has_server(tracking_uri) else LOCAL_UI
    # Links are shared, so they must not contain credentials; the browser asks for them.
    place = re.sub(r"^(\w+://)[^/]*@", r"\1", base)
    return f"{place.rstrip('/')}/#"


def run_link(tracking_uri: str, run: Any) -> str:
    """Return the URL of a run in the MLflow UI; empty if it has no id.

    Parameters
    ----------
    tracking_uri : str
        Tracking URI of the store.
    run : object
        Has a ``run_id`` and an ``experiment_id``: a stored cell, or the ``info`` of a run.
    """
    if run.run_id is None:
        return ""
    place = f"{pages(tracking_uri)}/experiments/{run.experiment_id}"
    return f"{place}/runs/{run.run_id}?{CLASSICAL}"


def has_server(uri: str) -> bool:
    """Whether the store is accessed through an MLflow server, which has its own UI."""
    return uri.startswith(("http://", "https://", "databricks"))


def _sqlite_uri(path: Path) -> str:
    """Return the URI of a SQLite file, with the characters escaped that SQLAlchemy interprets."""
    return "sqlite:///" + str(path).replace("%", "%25").replace("?", "%3F")


def sqlite_path(uri: str) -> Path | None:
    """Return the file of a SQLite store; None for any other store."""
    from sqlalchemy.engine import make_url

    return Path(str(make_url(uri).database)) if uri.startswith("sqlite") else None


def _artifact_location(uri: str, output: Path, experiment: str) -> str | None:
    """Return the artifact location of a new experiment; None lets the server choose it.

    For a database without a server MLflow would use the working directory.
    """
    if has_server(uri):
        return None
    file = sqlite_path(uri)
    folder = file.parent if file else output.absolute()
    name = re.sub(r"[^\w.-]+", "_", experiment).strip("._") or "experiment"
    return (folder / "mlartifacts" / name[:80]).as_uri()


def open_client(uri: str, *, create: bool = True) -> MlflowClient:
    """Open a store; with `create`, a SQLite file that does not exist is created.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if the store cannot be opened; gives the reason in one line.
    """
    client_class = load_client_class()
    try:
        _check_reachable(uri)
        if file := sqlite_path(uri):
            if create:
                _create_sqlite(file, client_class)
            elif not file.is_file():
                raise FileNotFoundError(
                    "no such file, so nothing has been recorded; check --runs, or run dcs "
                    "quickstart, dcs tune or dcs sweep first"
                )
        client: MlflowClient = client_class(tracking_uri=uri, registry_uri=uri)
        first = partial(client.search_experiments, max_results=1)
        within(_FIRST_ANSWER * timeout(), first) if has_server(uri) else first()
    except Exception as error:  # MLflow, SQLAlchemy and requests have no common class.
        raise TrackingError(reason_of(error)) from error
    return client


def _create_sqlite(path: Path, client_class: type[MlflowClient]) -> None:
    """Create a SQLite file atomically, unless it exists.

    MLflow creates its tables in dozens of steps, which takes seconds; if it is killed in between,
    no version of MLflow can open the file again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Another sweep in this folder may be creating it.
    with FileLock(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            with atomic_path(path) as whole:
                client_class(tracking_uri=_sqlite_uri(whole)).search_experiments(max_results=1)


def load_client_class() -> type[MlflowClient]:
    """Import MLflow (about a second) with less logging and, by default, without telemetry."""
    if "mlflow" not in sys.modules:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    for name, value in _REQUEST_SETTINGS.items():
        os.environ.setdefault(name, value)
    for level, names in _LOGGERS.items():
        for name in names:
            logging.getLogger(name).setLevel(level)
    # Logging a scheme needs pyfunc, and a database SQLAlchemy, as Optuna does: importing them in
    # the recorder's thread would race with imports of other threads.
    import sqlalchemy.orm  # noqa: F401
    from mlflow import MlflowClient, pyfunc  # noqa: F401

    return MlflowClient


def _check_reachable(uri: str) -> None:
    """Check reachability with a short timeout; MLflow itself would retry for minutes."""
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError:
        # The reason would quote a part of the password.
        raise ConfigError(
            f"invalid tracking URI {redact_uri(uri)}: expected HOST:PORT; percent-encode the "
            "special characters of a password, such as %2F"
        ) from None
    kind = parts.scheme.partition("+")[0]
    if not host or kind not in _PORTS:
        return  # A file, or a local database on a socket known only to its driver.
    if kind in getproxies() and not proxy_bypass(host):
        return  # Only a request through the proxy shows whether the server is reachable.
    socket.create_connection((host, port or _PORTS[kind]), timeout=_CONNECT_SECONDS).close()


def open_store(tracking_uri: str, *, create: bool = False) -> MlflowClient:
    """Open a store with `open_client`; an error names the store."""
    uri = resolve_tracking_uri(tracking_uri, ".")
    try:
        return open_client(uri, create=create)
    except TrackingError as error:
        raise TrackingError(f"tracking store {redact_uri(uri)} cannot be used: {error}") from error


def usable_experiment(client: MlflowClient, name: str) -> Experiment | None:
    """Return an experiment of a store, or None.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if it was deleted, or the folder of its SQLite store was moved.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is not None and sqlite_path(client.tracking_uri):
        _refuse_moved(experiment, str(_artifact_location(client.tracking_uri, Path(), name)))
    if experiment is not None and experiment.lifecycle_stage == "deleted":
        raise TrackingError(
            f"experiment {name!r} was deleted in MLflow; with MLFLOW_TRACKING_URI="
            f"{redact_uri(client.tracking_uri)}, `mlflow experiments restore -x "
            f"{experiment.experiment_id}` restores it, and `mlflow gc` deletes it for good"
        )
    return experiment


def _refuse_moved(experiment: Experiment, place: str) -> None:
    """Refuse artifacts where the store was made, if its folder was moved or copied since."""
    places = experiment.artifact_location, place
    old, new = (Path(url2pathname(urlsplit(each).path)) for each in places)
    ours = old.parts[-2:] == new.parts[-2:] and old != new
    if ours and not (old.parents[1].exists() and old.parents[1].samefile(new.parents[1])):
        raise TrackingError(
            f"the store was moved or copied, its artifacts are said to be in {old.parent}; rename "
            f"{new.parents[1]}/mlflow.db, then `dcs sync` records all cells in a new one"
        )


def make_experiment(
    client: MlflowClient, name: str, output: Path, tags: dict[str, Any] | None = None
) -> Experiment:
    """Return an experiment of a store, and create it if it does not exist.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if it was deleted, or the folder of its SQLite store was moved.
    """
    from mlflow.exceptions import MlflowException

    if (experiment := usable_experiment(client, name)) is None:
        place = _artifact_location(client.tracking_uri, output, name)
        try:
            experiment = client.get_experiment(client.create_experiment(name, place, tags))
        except MlflowException:
            # Another driver may have created it meanwhile; if not, the caller reports the error.
            if (experiment := client.get_experiment_by_name(name)) is None:
                raise
    return experiment


def search_runs(
    client: MlflowClient, experiment_ids: Iterable[str], where: str, *, deleted: bool = False
) -> Iterator[Run]:
    """Yield the runs of experiments that match a filter, or those deleted, oldest first."""
    from mlflow.entities import ViewType

    order: dict[str, Any] = {"order_by": ["attributes.start_time ASC"], "max_results": _PAGE}
    kind = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
    token: str | None = None
    while True:
        page = client.search_runs([*experiment_ids], where, kind, page_token=token, **order)
        yield from page
        if not (token := page.token):
            return


def log_files(client: MlflowClient, run_id: str, files: Mapping[str, str | bytes]) -> None:
    """Log files as artifacts of a run, by their artifact paths."""
    with tempfile.TemporaryDirectory(prefix="dcs-") as folder:
        for name, content in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        client.log_artifacts(run_id, folder)


def log_check(tracking_uri: str, name: str, metrics: Mapping[str, float]) -> None:
    """Record the figures of a check of new rows as a run of the experiment `checks`."""
    from mlflow.entities import Metric

    client = open_store(tracking_uri, create=True)
    experiment = make_experiment(client, "checks", Path())
    run = client.create_run(experiment.experiment_id, run_name=name)
    logged = [Metric(key, value, run.info.start_time, 0) for key, value in metrics.items()]
    client.log_batch(run.info.run_id, metrics=logged)
    client.set_terminated(run.info.run_id)
