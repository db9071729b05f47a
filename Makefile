# Every target sets itself up: python 3.11 or newer, make and a package registry are enough.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: help venv up test lint lock clean libgomp faults refusals adoption attacks

help:
	@echo "make up     load the tiny model on two agents of this machine and open the console (ARGS=--once: no console)"
	@echo "make test   run the tests; make faults adds the long tables (ARGS='tests/local -k caretaker' narrows)"
	@echo "make faults, refusals, adoption, attacks   the rows of one proof, one line each, and how many held"
	@echo "make lint   ruff, mypy and the import arrows"
	@echo "make lock   resolve requirements.lock anew"
	@echo "make clean  remove the virtual environment and the caches"

venv: $(STAMP)

up: $(STAMP) libgomp
	@$(BIN)/ringtop up $(ARGS)

test: $(STAMP) libgomp
	@$(BIN)/pytest -n 2 --dist loadgroup $(ARGS)

# One proof: its rows, then `N held, M fell short`; the exit code is 1 when any fell short.
faults refusals adoption attacks: $(STAMP) libgomp
	@$(BIN)/python -m pytest -qq -n 2 --dist loadgroup -m $@ -p tests.summary $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The lock holds for every platform and Python that pyproject.toml allows, has a hash for each file, and names no registry.
lock: $(STAMP)
	@$(BIN)/python -m venv $(VENV)/lock
	@$(VENV)/lock/bin/python -m pip install --quiet uv
	@$(VENV)/lock/bin/uv pip compile --quiet --no-config --upgrade --universal --python-version 3.11 --generate-hashes \
	  --extra local --group dev --no-emit-index-url --no-header --no-annotate pyproject.toml -o requirements.lock
	@rm -rf $(VENV)/lock
	@! grep -nE '://|^--(index|extra-index|find-links)' requirements.lock

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements.lock pyproject.toml
	@python=""; \
	for candidate in python3.11 python3.12 python3.13 python3.14 python3; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    python="$$candidate"; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "ringtop needs Python 3.11 or newer, and none of python3.11 to python3.14 and python3 is that." \
	    "Install one: sudo apt-get install python3.11 python3.11-venv" >&2; \
	  exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	  echo "$$python cannot make virtual environments. Install that part: sudo apt-get install python3-venv" >&2; \
	  exit 1; \
	fi; \
	if [ -e $(VENV) ] && ! $(BIN)/python -m pip --version >/dev/null 2>&1; then rm -rf $(VENV); fi; \
	[ -e $(VENV) ] || "$$python" -m venv $(VENV)
	@echo "installing into $(VENV); the first time takes a minute or two"
	@$(PIP) --require-hashes -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# llama.cpp's programs are linked against the OpenMP runtime, which slim systems lack.
libgomp: $(STAMP)
	@if [ "$$(uname -s)" = Linux ] && ! $(BIN)/python -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null; then \
	  echo "libgomp.so.1 is not on this system, and llama.cpp's programs need it." \
	    "Install it: sudo apt-get install libgomp1" >&2; \
	  exit 1; \
	fi
