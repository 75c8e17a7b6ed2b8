# Everything runs from .venv, which the first target that needs it makes of PYTHON: by default the first of these commands
# that is Python 3.11 or newer.
PYTHON ?= $(shell for each in python3 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)
VENV := .venv
BIN := $(VENV)/bin
# Compiling all of the 120 packages took 58% of an installation's processor time; a fresh environment compiles what it
# imports, once, unless it may not.
COMPILE := $(if $(PYTHONDONTWRITEBYTECODE),--compile,--no-compile)
# Nobody waits for these to be compiled: where one has no wheel for this Python, the installation ends at once.
WHEELS := torch,ray,numpy,scipy,scikit-learn,pandas,pyarrow,matplotlib,pillow,grpcio
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --progress-bar off $(COMPILE) \
	--constraint constraints.txt --only-binary $(WHEELS)
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
	$(BIN)/python benchmarks/run_all.py

clean: ## Remove the environment and caches; runs stay.
	rm -rf $(VENV) site .pytest_cache .ruff_cache .mypy_cache .import_linter_cache

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "DiTLab needs Python 3.11 or newer, and neither python3 nor python3.11 to python3.13 is one;\
	 set PYTHON=/path/to/python." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "DiTLab needs Python 3.11 or newer, PYTHON=$(PYTHON)\
	 is " + sys.version.split()[0] + "; name another.")'
	@echo "$(VENV) is made with $$($(PYTHON) -c 'import sys; print("Python", sys.version.split()[0], "of", sys.executable)')"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }  # half an environment would pass for a whole one

# PYTHON that somebody names is the one of an environment that is there.
.PHONY: same-python
same-python: | $(VENV)/bin/python
ifneq ($(origin PYTHON),file)
	@test "$$($(PYTHON) -V)" = "$$($(BIN)/python -V)" || { echo "PYTHON=$(PYTHON) is $$($(PYTHON) -V), and $(VENV) was made\
	 with $$($(BIN)/python -V); run make clean first, or leave PYTHON out." >&2; exit 1; }
endif

# Where a package has no wheel for this Python, pip's error does not name it, and its log does.
define install
@rm -f $(VENV)/pip.log
@$(PIP) --log $(VENV)/pip.log $(1) || { \
	missing=$$(sed -n -e 's/.* The user requested (constraint) //p' -e 's/.*No matching distribution found for //p' \
		$(VENV)/pip.log | head -n 1); \
	test -z "$$missing" || echo "pip found no $$missing for $$($(BIN)/python -V) here. If its index can be reached, another\
	 Python has it: run make clean, then name one with PYTHON=/path/to/python (tested: 3.11, 3.12, 3.13)." >&2; exit 1; }
endef

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/bin/python | same-python
	@echo "installing into $(VENV) (minutes; torch for CUDA, where pip chooses that, is a download of 3 GB) ..."
	$(call install,--editable .)
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(call install,--editable '.[docs]')
	@touch $@

$(VENV)/.installed-browser: $(VENV)/.installed
	$(call install,--editable '.[browser]')
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(call install,--editable '.[dev]')
	@touch $@
