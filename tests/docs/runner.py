"""Runs the blocks of one document in order, as a reader would type them."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from .documents import ROOT, Block, Document
from .givens import prepare

__all__ = ["Session"]

#: What the documents name as lying in the checkout.
_CHECKOUT = ("workflows", "benchmarks", "cluster.yaml", "constraints.txt")
_NOT_COPIED = shutil.ignore_patterns("reference", "build", "*.egg-info", "__pycache__")
_BLOCK_SECONDS = 1800.0
_START_SECONDS = 1800.0


class Session:
    """A folder in which the blocks of a document are run one after the other.

    Exported variables, the working directory and what words stand for stay from one shell block
    to the next, names from one Python block to the next. What was started in the background is
    ended with the session.
    """

    def __init__(self, document: Document, folder: Path) -> None:
        self._document = document
        self._home = folder / "home"
        self._state = folder / "state"
        self.folder = folder / "checkout"
        self.folder.mkdir()
        self._home.mkdir()
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._started: list[subprocess.Popen[bytes]] = []
        self._given: set[str] = set()
        self._words: dict[str, str] = {}
        for name in _CHECKOUT:
            (self.folder / name).symlink_to(ROOT / name)
        # A copy: what is built from the examples leaves files beside them.
        shutil.copytree(ROOT / "docs", self.folder / "docs", ignore=_NOT_COPIED)
        _link_environment(self.folder / ".venv")
        self._site = str(folder / "site")
        self._environment = _environment(self._home, folder / "site")

    def __enter__(self) -> Session:
        sys.path.insert(0, self._site)
        return self

    def __exit__(self, *error: object) -> None:
        with ExitStack() as stack:
            for process in self._started:
                stack.callback(_end, process)
        sys.path.remove(self._site)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(self._site):
                del sys.modules[name]

    def run(self, block: Block) -> str:
        """Run a block and return what it printed; fail with all it said if it goes wrong."""
        place = f"{self._document.name}:{block.line}"
        for text in block.marked("given"):
            for name in text.split(","):
                self._give(name.strip())
        for name in block.marked("file"):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code, encoding="utf-8")
        for text in block.marked("where"):
            word, _, value = (part.strip() for part in text.partition("="))
            self._words[word] = self._expanded(value, place)
            assert _replaced(block.code, word, "") != block.code, f"{place}: there is no {word}"
        code, urls = block.code, block.marked("background")
        for word, new in self._words.items():
            code, urls = _replaced(code, word, new), [_replaced(url, word, new) for url in urls]
        if block.language == "python":
            return self._python(code, place)
        if block.language != "sh":
            return ""
        if urls:
            return self._background(code, urls[0], place)
        return self._shell(code, place)

    def _give(self, name: str) -> None:
        if name not in self._given:
            self._given.add(name)
            self._names |= prepare(name, self.folder)

    def _python(self, code: str, place: str) -> str:
        source = "\n" * (int(place.rpartition(":")[2])) + code
        printed = io.StringIO()
        with chdir(self.folder), _variables(self._exported()), redirect_stdout(printed):
            exec(compile(source, place.rpartition(":")[0], "exec"), self._names)
        return printed.getvalue()

    def _shell(self, code: str, place: str) -> str:
        # What a block exports, and where it goes, holds for the next one too.
        script = (
            f"set -euo pipefail\n{self._restored()}\n{code}\n"
            f"export -p > {self._state}\nprintf 'cd %q\\n' \"$PWD\" >> {self._state}\n"
            f"env -0 > {self._state}.env\n"
        )
        result = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_BLOCK_SECONDS,
        )
        assert result.returncode == 0, (
            f"{place} ended with code {result.returncode}\n{code}\n{result.stdout}{result.stderr}"
        )
        return result.stdout

    def _background(self, code: str, url: str, place: str) -> str:
        log = self.folder.parent / f"background-{len(self._started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"set -euo pipefail\n{self._restored()}\n{code}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        until = time.monotonic() + _START_SECONDS
        while not _answers(url):
            said = log.read_text(encoding="utf-8", errors="replace")
            assert process.poll() is None, f"{place} ended\n{code}\n{said}"
            assert time.monotonic() < until, f"{place}: {url} does not answer\n{code}\n{said}"
            time.sleep(0.3)
        return ""

    def _exported(self) -> dict[str, str]:
        """Return the variables that shell blocks have set."""
        dump = self._state.with_name(f"{self._state.name}.env")
        if not dump.exists():
            return {}
        pairs = [entry.partition("=") for entry in dump.read_text().split("\0") if entry]
        ours = ("PWD", "OLDPWD", "SHLVL", "_")
        return {
            name: value
            for name, _, value in pairs
            if name not in ours and self._environment.get(name) != value
        }

    def _restored(self) -> str:
        return f"source {self._state}" if self._state.exists() else ":"

    def _expanded(self, value: str, place: str) -> str:
        if value == "free port":
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                return str(probe.getsockname()[1])
        script = f"{self._restored()}\nprintf %s {value}"
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode == 0, f"{place}: {value}: {result.stderr}"
        return result.stdout


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _replaced(code: str, word: str, text: str) -> str:
    return re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", lambda match: text, code)


def _environment(home: Path, site: Path) -> dict[str, str]:
    kept = ("LANG", "LC_ALL", "TMPDIR", "NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS")
    site.mkdir()
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(home),
        "COLUMNS": "110",
        # What a document installs goes here and not into the environment of the tests.
        "PYTHONPATH": str(site),
        "PIP_TARGET": str(site),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this backwards: without isolation
        "PIP_NO_DEPS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HF_HUB_OFFLINE": "1",
    }


def _link_environment(folder: Path) -> None:
    """Make what ``make install`` would make: ``.venv`` with the project in it."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(parents=True)
    for program in Path(sys.executable).parent.iterdir():
        (bin_folder / program.name).symlink_to(program)
    (bin_folder / "activate").unlink(missing_ok=True)
    ours = shlex.quote(str(Path(sys.executable).parent))
    (bin_folder / "activate").write_text(f'export PATH={ours}:"$PATH"\n', encoding="utf-8")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
