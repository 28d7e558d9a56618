# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint types test-all clean

## demo: speak the ten rows of samples/manifest.jsonl into out/demo
demo: $(READY)
	@$(BIN)/fishcli synth samples/manifest.jsonl --out out/demo --model mini || { \
		code=$$?; [ $$code -eq 3 ] || exit $$code; \
		echo "Some rows were cut off at their budget or failed (exit code 3): see the report."; }

## test: lint, types and the tests that need neither a GPU nor minutes
test: lint types
	$(BIN)/pytest -m "not gpu and not slow"

## test-all: every test that this machine can run, the slow ones included
test-all: lint types
	$(BIN)/pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# The environment, made once and again when what it is made from changes.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "fishcli needs Python 3.11 or later; choose one with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist out fishcli.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
