"""Reads the documents and runs their blocks of code, as a reader would type them.

Before a block stand comments that say how it is run; they do not show on the page:

    <!-- not run: REASON -->      it is not run, for this reason
    <!-- given: NAME, ... -->     files or Python names that it needs; see givens.py
    <!-- file: NAME -->           it is written to a file of this name
    <!-- where: WORD = TEXT -->   WORD stands for TEXT, which the shell expands, or a free port
    <!-- background: URL -->      it runs to the end of the document; URL answers once it is up
    <!-- output -->               each of its lines is in what the block before it printed
    <!-- source: FILE -->         it is a part of this file of the checkout

Shell and Python blocks run in order, in one folder per document. Exported variables, the working
directory, Python names and what words stand for stay from one block to the next.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack, chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.servers import free_port, running
from tests.workflows.conftest import done

from .givens import prepare

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(
    r"(?P<markers>(?:^[ ]*<!--[^>]*-->\s*\n)*)"
    r"^(?P<indent>[ ]*)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)
_MARKER = re.compile(r"<!--\s*([\w ]+?)\s*(?::\s*(.*?))?\s*-->")
_SECONDS = 1800.0

#: Options of commands whose results are not shown.
_QUICK = {
    "tune": ("--trials", "3"),
    "quickstart": (
        *("--set=tuner.trials=3", "--set=limit=300", "--set=optimization_sizes=[200]"),
        "--set=tracking.figures=none",
    ),
}


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code: its language, lines, first line in the document, and markers."""

    language: str
    code: str
    line: int
    markers: tuple[tuple[str, str], ...]

    def marked(self, name: str) -> list[str]:
        """Return what the markers of a name say; empty if there is none."""
        return [text for marker, text in self.markers if marker == name]

    @property
    def runs(self) -> bool:
        """Whether there is something to run or to write."""
        shown = self.marked("not run") or self.marked("source")
        return not shown and (self.language in ("sh", "python") or bool(self.marked("file")))


def documents() -> list[str]:
    """Return the names of all that people read, as seen from the root of the checkout."""
    return ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"] + sorted(
        path.relative_to(ROOT).as_posix()
        for folder in ("docs", "reports")
        for path in (ROOT / folder).glob("*.md")
    )


def blocks_of(name: str) -> list[Block]:
    """Return the blocks of a document."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [
        Block(
            found["language"],
            re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE),
            text.count("\n", 0, found.start("code")),
            tuple((marker, value or "") for marker, value in _MARKER.findall(found["markers"])),
        )
        for found in _BLOCK.finditer(text)
    ]


class Session:
    """A folder like a checkout, in which the blocks of a document run one after the other.

    Commands of ``dcs`` whose output is not shown run in this process, which spares imports that
    take longer than the work.
    """

    def __init__(self, folder: Path, store: Path) -> None:
        self._folder = folder / "checkout"
        # A copy: what is built from the examples leaves files beside them.
        shutil.copytree(ROOT / "docs", self._folder / "docs")
        for name in ("workflows", "benchmarks", "cluster.yaml", "constraints.txt"):
            (self._folder / name).symlink_to(ROOT / name)
        # An MLflow database with tables, which take seconds to make.
        (self._folder / "dcs-runs").mkdir()
        shutil.copy(store, self._folder / "dcs-runs")
        programs = Path(sys.executable).parent
        activate = self._folder / ".venv" / "bin" / "activate"
        activate.parent.mkdir(parents=True)
        activate.write_text(f'export PATH={shlex.quote(str(programs))}:"$PATH"\n')
        self._state, self._site = folder / "state", folder / "site"
        self._variables = {
            **{k: os.environ[k] for k in ("LANG", "TMPDIR") if k in os.environ},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "COLUMNS": "110",
            # What a document installs goes here and not into the environment of the tests.
            "PYTHONPATH": f"{self._site}{os.pathsep}{os.environ['PYTHONPATH']}",
            "PIP_TARGET": str(self._site),
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this backwards: without isolation
            "PIP_NO_DEPS": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "HF_HUB_OFFLINE": "1",
        }
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._words: dict[str, str] = {}
        self._started = ExitStack()

    def __enter__(self) -> Session:
        sys.path.insert(0, str(self._site))
        return self

    def __exit__(self, *error: object) -> None:
        sys.path.remove(str(self._site))
        self._started.close()
        # A block may have told MLflow of its store, for as long as this process lasts.
        if "mlflow" in sys.modules:
            sys.modules["mlflow"].set_tracking_uri(None)

    def run(self, block: Block, *, shown: bool) -> str:
        """Run a block and return what it printed; fail with all it said if it goes wrong.

        What is shown of it is as a reader would see it; other results need not be good ones.
        """
        for text in block.marked("given"):
            for name in text.split(","):
                self._names |= prepare(name.strip(), self._folder)
        for name in block.marked("file"):
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code, encoding="utf-8")
        for text in block.marked("where"):
            word, _, value = (part.strip() for part in text.partition("="))
            port = value == "free port"
            self._words[word] = str(free_port()) if port else self._shell(f"printf %s {value}")
        code = self._worded(block.code)
        if block.marked("background"):
            command, health = _script(_quick(code)), self._worded(block.marked("background")[0])
            started = running(command, health, env=self._variables, cwd=self._folder)
            self._started.enter_context(started)
        elif block.language == "sh":
            commands = None if shown else _commands(code)
            return self._shell(code) if commands is None else self._dcs(commands)
        elif block.language == "python":
            return self._python(code)
        return ""

    def _worded(self, text: str) -> str:
        for word, value in self._words.items():
            text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", value, text)
        return text

    def _dcs(self, commands: list[list[str]]) -> str:
        with mock.patch.dict(os.environ, self._variables), chdir(self._folder):
            return "".join(done(*command, *_QUICK.get(command[0], ())).out for command in commands)

    def _python(self, code: str) -> str:
        printed = io.StringIO()
        with (
            mock.patch.dict(os.environ, self._variables),
            chdir(self._folder),
            redirect_stdout(printed),
        ):
            exec(compile(code, "block", "exec"), self._names)
        return printed.getvalue()

    def _shell(self, code: str) -> str:
        # What a block exports, and where it goes, holds for the next one too.
        done = subprocess.run(
            _script(f"{code}\nenv -0 > {self._state}"),
            cwd=self._folder,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        assert done.returncode == 0, f"ended with {done.returncode}\n{code}\n{done}"
        importlib.invalidate_caches()  # it may have installed a package
        pairs = [each.partition("=") for each in self._state.read_text().split("\0") if each]
        self._variables = {name: value for name, _, value in pairs}
        self._folder = Path(self._variables["PWD"])
        return done.stdout


def _commands(code: str) -> list[list[str]] | None:
    """Return the arguments of each ``dcs`` of a block, or None if something else is in it."""
    lines = [line for line in code.replace("\\\n", " ").splitlines() if line.strip()]
    if set(code) & set("$|&;`") or not all(line.startswith("dcs ") for line in lines):
        return None
    return [shlex.split(line, comments=True)[1:] for line in lines]


def _quick(code: str) -> str:
    """Add the options of :data:`_QUICK` to the commands of a block."""
    for name, options in _QUICK.items():
        command = shlex.join(["dcs", name, *options])
        code = re.sub(rf"^dcs {name}\b", command, code, flags=re.MULTILINE)
    return code


def _script(code: str) -> list[str]:
    return ["bash", "-c", f"set -euo pipefail\n{code}\n"]
