# VENUS: `make` lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Twice as many workers as cores, because the tests wait for disks and other processes more than they compute.
# Files stay together on a worker. The stories take longest and begin (ORDER in tests/support/selection.py).
WORKERS := -n $(shell expr 2 \* $$(nproc))
SPREAD := $(WORKERS) --dist loadfile --no-loadscope-reorder
# A test that failed beside others is repeated alone. If it passes then, it is FLAKY, and the run fails unless
# tests/known_flaky.txt names it (tests/support/second_try.py). tests/support/selection.py gives each test its level.
PYTEST := $(BIN)/pytest $(SPREAD) --second-try

# Otherwise each process of the suite, and each command that it starts, would compile all modules: a minute or more.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo dev check dist docs test test-full test-all test-nightly test-oracle protos clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.demo ## install and show the whole path, SQLite to an embedded PostgreSQL
	@$(BIN)/venus demo

dev: $(VENV)/.dev ## install everything a developer needs

check: $(VENV)/.dev ## format, lint, types, import contracts, spelling, generated code unchanged, known vulnerabilities
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --strict docs/examples
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell
	$(BIN)/python -m tests.support.protos --check
	$(BIN)/python -m tests.support.advisories

docs: $(VENV)/.dev ## the site of docs/ in build/site; a dead link or anchor fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

dist: $(VENV)/.dev ## build the sdist, and the wheel from it, into dist/
	rm -rf dist
	$(BIN)/python -m tests.support.distribution dist

test: $(VENV)/.dev ## units, conformance and the main path: within 6 minutes on 2 cores
	$(PYTEST) --level quick

test-full: $(VENV)/.dev ## what CI runs behind `make test`: integration, faults, all stories
	$(PYTEST) --level full --durations 10

# The slow tests are in few files, so they are distributed one by one.
test-all: test test-full ## everything but tests of hours: within 45 minutes on 2 cores
	$(BIN)/pytest $(WORKERS) --dist worksteal --second-try --level slow

# The stories again, with a new interpreter for each command, as for a user (tests/support/processes/forked.py).
test-nightly: $(VENV)/.dev ## tests of hours: each byte damaged, 100 fault runs, 300 power cuts, 2,000 histories of brokers
	TEST_NEW_INTERPRETERS=1 $(PYTEST) --level quick,full,slow tests/story
	$(BIN)/pytest $(WORKERS) --dist worksteal --second-try --level nightly

test-oracle: $(VENV)/.dev ## the Oracle source on a real Oracle: in Docker, or an empty schema at VENUS_ORACLE_URL
	$(BIN)/pip install --quiet --editable '.[oracle]'
	$(BIN)/pytest -m oracle tests/oracle

protos: $(VENV)/.dev ## regenerate venus/wire from protos/
	$(BIN)/python -m tests.support.protos

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: setup.cfg | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[demo]'
	@touch $@

$(VENV)/.dev: setup.cfg | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.demo

clean: ## remove what was built
	rm -rf $(VENV) build dist *.egg-info
