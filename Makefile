# Each target sets up what it needs and does again only what has changed. Needed: Python 3.10 or
# newer with venv, make and a C++20 compiler; nvcc too for the CUDA part.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
# Processes that run tests, each with one thread; 0 runs them in pytest's own.
JOBS ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?=

BIN := $(VENV)/bin
# For the programs that are looked for by name alone, as torch looks for ninja.
export PATH := $(abspath $(BIN)):$(PATH)
SOURCES := setup.py pyproject.toml MANIFEST.in $(shell find csrc -type f)
CPP := $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
PYTEST := $(if $(filter 0,$(JOBS)),,OMP_NUM_THREADS=1) $(BIN)/python -m pytest -n $(JOBS)

.PHONY: help demo test test-slow lint format bench clean distclean missing
.DEFAULT_GOAL := help

help:
	@echo "make demo | test | test-slow | lint | format | bench | clean | distclean"

demo: $(VENV)/.package
	$(BIN)/python examples/gather_linear.py

test: $(VENV)/.test
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/.dev
	$(PYTEST) -m slow $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

bench: $(VENV)/.test
	set -e; for script in benchmarks/[a-z]*.py; do $(BIN)/python $$script $(BENCH_ARGS); done

# The files .torch, .package, .test and .dev say what a virtual environment holds already.

$(VENV)/.torch:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet "setuptools>=77" wheel ninja
	touch $@

# Editable: Python files need no build, and ninja compiles those of csrc/ that have changed. The
# extension lies in kernelbench_dist/, so a build from another environment makes this one stale, and
# so does its removal.
BUILT := kernelbench_dist/_build_stamp.json
$(VENV)/.package: $(VENV)/.torch $(SOURCES) $(or $(wildcard $(BUILT)),missing)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable .
	touch $@

# The package is installed: pip adds only what the extra asks for.
$(VENV)/.test: $(VENV)/.package
	$(BIN)/python -m pip install --quiet "kernelbench-dist[test]"
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(BIN)/python -m pip install --quiet "kernelbench-dist[dev]"
	touch $@

clean:
	rm -rf build dist *.egg-info kernelbench_dist/_C.*.so kernelbench_dist/_build_stamp.json
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage htmlcov
	rm -f .venv*/.package .venv*/.test .venv*/.dev
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv*
