# Two commands on a fresh machine: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow check clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(INSTALLED)  ## make .venv with the tested versions

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(INSTALLED)  ## run the main job on the embedded model and tasks
	$(BIN)/dcs quickstart

test: $(INSTALLED)  ## pass the tests
	$(BIN)/python -m pytest

test-slow: $(INSTALLED)  ## pass the tests that take more than a few seconds each
	$(BIN)/python -m pytest -m slow

check: $(INSTALLED)  ## lint, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:  ## remove the environment and what the demo wrote
	rm -rf $(VENV) dcs-runs
