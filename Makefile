# Every target does the set-up that it needs. `make` alone lists what there is.

PYTHON := .venv/bin/python
JOBS ?= auto

.DEFAULT_GOAL := help
.PHONY: help setup demo test night fast lint format types check bench clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup:  ## .venv with the command kaicep in it (does nothing when nothing changed)
	@bash scripts/setup.sh

demo: setup  ## a campus comes alive: its morning archived, thirteen queries back in time and live
	@.venv/bin/kaicep demo

test: setup  ## all tests but the longest, and the examples in the docstrings
	@$(PYTHON) -m pytest -n $(JOBS) -m "not night"

night: setup  ## the longest tests, and ten times as many random ones
	@KAICEP_EXAMPLES=5000 KAICEP_SPARK_EXAMPLES=500 KAICEP_KILLS=20 KAICEP_VERSIONS=200 KAICEP_CRASHES=100000 KAICEP_CRASH_RUNS=2 KAICEP_FAULTS=4000 KAICEP_FUZZ_SECONDS=400 $(PYTHON) -m pytest -rP -m "night or random"

fast: setup  ## the tests that take seconds, in a minute
	@$(PYTHON) -m pytest -n $(JOBS) -m "not slow and not random and not spark and not servers and not night"

lint: setup  ## ruff: rules and layout
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

format: setup  ## let ruff mend what it can
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

types: setup  ## mypy, strict
	@$(PYTHON) -m mypy

check: lint types test  ## everything that CI looks at

bench: setup  ## how fast the command line starts
	@$(PYTHON) -m kaicep bench startup

clean:  ## back to a fresh clone
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	@find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
