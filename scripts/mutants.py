"""Mutate random places of the code, and list the mutants that the tests of their package miss.

python scripts/mutants.py FOLDER [NUMBER [SEED]]

Uses cosmic-ray (make mutants installs it) on a copy of the checkout in FOLDER. A second call
continues where the first was stopped.
"""

from __future__ import annotations

import ast
import filecmp
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv" / "bin" / "python"

#: What is mutated, and the tests that are expected to notice, the first that fits; a package has
#: tests of its name.
TESTED = {
    "dcs/schemes/apply.py": "tests/dcs/schemes tests/workflows/test_serving.py",
    **{f"dcs/{name}": f"tests/dcs/{name}" for name in ("data", "evaluation", "prompting")},
    **{f"dcs/{name}": f"tests/dcs/{name}" for name in ("schemes", "scoring", "search")},
    "dcs/selection": "tests/dcs/selection",
    "dcs/methods": "tests/dcs/methods tests/dcs/selection",
    "dcs": "tests/dcs/test_io.py tests/dcs/test_errors.py tests/dcs/test_plugins.py "
    "tests/dcs/test_seeds.py",
    "tracking/dcs_tracking/records.py": "tests/tracking/test_records.py tests/golden",
    "tracking/dcs_tracking/archive.py": "tests/tracking/test_records.py tests/test_readers.py "
    "tests/tracking/store/test_queries.py",
    "workflows/dcs_workflows/study": "tests/workflows/study tests/workflows/test_plan.py",
    "workflows/dcs_workflows/cluster/driver.py": "tests/workflows/test_sweep.py "
    "tests/workflows/cluster",
}
#: Engines need a server or a model each; the kernels are judged by one slow test file each.
EXCLUDED = ("dcs/scoring/vllm.py", "dcs/scoring/transformers.py", "__init__.py")


def modules() -> list[str]:
    """Return the modules to mutate."""
    found = {
        str(path.relative_to(ROOT))
        for name in TESTED
        for path in ((ROOT / name).rglob("*.py") if (ROOT / name).is_dir() else [ROOT / name])
    }
    return sorted(name for name in found if not name.endswith(EXCLUDED))


def annotations(module: str) -> Iterator[range]:
    """Yield the lines of annotations, which are never evaluated."""
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        for name in ("annotation", "returns"):
            if part := getattr(node, name, None):
                yield range(part.lineno, part.end_lineno + 1)


def test() -> int:
    """Run the tests of the package of the module that differs in the current folder."""
    original = Path(os.getcwd()).with_name("original")
    (changed,) = [n for n in modules() if not filecmp.cmp(original / n, n, shallow=False)]
    tests = next(tests for name, tests in TESTED.items() if changed.startswith(name)).split()
    folders = [part for part in Path(changed).parts[:-1] if not part.startswith("dcs_")]
    own = Path("tests", *folders, f"test_{Path(changed).name}")
    # Most mutants are killed by the tests of their module, which run by themselves first: together
    # with others, the slow ones come first.
    runs = [[str(own)], tests] if own.is_file() else [tests]
    with tempfile.TemporaryDirectory() as cache:
        # Numba does not notice changes of the functions that a compiled one calls.
        environment = os.environ | ({"NUMBA_CACHE_DIR": cache} if "kernels" in changed else {})
        pytest = [PYTHON, "-m", "pytest", "-q", "-x"]
        codes = (subprocess.run([*pytest, *each], env=environment).returncode for each in runs)
        return next((code for code in codes if code not in (0, 5)), 0)  # 5: none of them is quick


def main(folder: str, number: str = "150", seed: str = "0") -> None:
    """Draw mutants, run the tests on each, and print the result."""
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    session, tree = Path(folder).absolute() / "session.sqlite", Path(folder).absolute() / "tree"
    cosmic_ray = Path(sys.executable).with_name("cosmic-ray")
    if not session.is_file():
        tree.mkdir(parents=True)
        for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split("\n"):
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        shutil.copytree(tree, tree.with_name("original"))
        paths = ", ".join(f'"{name}"' for name in modules())
        (tree / "mutants.toml").write_text(
            f"[cosmic-ray]\nmodule-path = [{paths}]\ntimeout = 400.0\n"
            f'test-command = "{sys.executable} {__file__} test"\n'
            '[cosmic-ray.distributor]\nname = "local"\n'
        )
        subprocess.run([cosmic_ray, "init", "mutants.toml", session], cwd=tree, check=True)
        skipped = {name: {k for r in annotations(name) for k in r} for name in modules()}
        with use_db(session) as db:
            jobs = [
                (str(spec.module_path), spec.start_pos, spec.operator_name, spec.occurrence, item)
                for item in db.pending_work_items
                for spec in item.mutations
                if spec.start_pos[0] not in skipped[str(spec.module_path)]
            ]
            jobs.sort(key=lambda job: job[:4])
            drawn = {job[4].job_id for job in random.Random(seed).sample(jobs, int(number))}
            for item in list(db.pending_work_items):
                if item.job_id not in drawn:
                    db.set_result(item.job_id, WorkResult(WorkerOutcome.SKIPPED))
    # A run that was stopped may have left a mutant.
    shutil.copytree(tree.with_name("original"), tree, dirs_exist_ok=True)
    subprocess.run([cosmic_ray, "exec", "mutants.toml", session], cwd=tree, check=True)
    with use_db(session) as db:
        items = {item.job_id: item for item in db.work_items}
        results = [(items[key], result) for key, result in db.results]
    outcomes = Counter(str(r.test_outcome.value) for _, r in results if r.test_outcome)
    print(dict(outcomes))
    for item, result in results:
        if result.test_outcome and not result.is_killed:
            (spec,) = item.mutations
            print(f"{spec.module_path}:{spec.start_pos[0]} {spec.operator_name}\n{result.diff}")


if __name__ == "__main__":
    sys.exit(test() if sys.argv[1:] == ["test"] else main(*sys.argv[1:]))
