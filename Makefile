# Everything runs from .venv, which the first target that needs it makes. PYTHON may name another interpreter (3.11).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Compiling all of the 120 packages took 58% of an installation's processor time; a fresh environment compiles what it
# imports, once, unless it may not.
COMPILE := $(if $(PYTHONDONTWRITEBYTECODE),--compile,--no-compile)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet $(COMPILE) --constraint constraints.txt
# Processes that share the tests, a file at a time; those on Ray stay together.
WORKERS ?= 2
# The README's first run; `make demo SPEC=experiments/digits/dit.yaml` trains another.
SPEC ?= experiments/digits/demo.yaml

.PHONY: help install demo test test-all check format docs screenshots bench clean

help: ## This list.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(VENV)/.installed ## The command `ditlab`, in .venv.

demo: $(VENV)/.installed ## Install, then train a diffusion transformer on real handwritten digits (minutes).
	$(BIN)/ditlab train $(SPEC)

screenshots: $(VENV)/.installed-browser ## Train small runs, and take pictures of every page in Chromium (minutes).
	$(BIN)/python tests/browser/screenshots.py

test: $(VENV)/.installed-dev ## Install, then every test but the long ones.
	$(BIN)/python -m pytest -m "not slow" --numprocesses $(WORKERS) --dist loadfile

test-all: $(VENV)/.installed-dev ## Every test.
	$(BIN)/python -m pytest

check: $(VENV)/.installed-dev ## Lint, format, types, directions of imports, every YAML.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/ditlab validate experiments/*/*.yaml

format: $(VENV)/.installed-dev ## Let ruff format and sort.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-docs ## The documentation as a site in site/: made from docs/ and the code, every link checked.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html (search needs a server: $(BIN)/python -m http.server --directory site)"

bench: $(VENV)/.installed-dev ## Every benchmark, and a table of their ratios; JSON in build/bench.json (two hours; on a quiet machine).
	$(BIN)/python tests/benchmarks/run_all.py

clean: ## Remove the environment and caches; runs stay.
	rm -rf $(VENV) site .pytest_cache .ruff_cache .mypy_cache .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "DiTLab needs Python 3.11, this is " + sys.version.split()[0] + "; set PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing into $(VENV) (a minute or two) ..."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@$(PIP) --editable '.[docs]'
	@touch $@

$(VENV)/.installed-browser: $(VENV)/.installed
	@$(PIP) --editable '.[browser]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(PIP) --editable '.[dev]'
	@touch $@
