# The two commands of README.md are `make demo` and `make test`; both set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
PROTOS := $(sort $(wildcard proto/wavepp/v1/*.proto))

.PHONY: demo test lint proto proto-check format clean perf

demo: $(STAMP)
	$(PY) -m wavepp.cli demo

test: $(STAMP) lint
	$(PY) -m pytest

lint: $(STAMP) proto-check
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# The lock file fixes every version; pyproject.toml only gives ranges.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "WavePP needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11 ...")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade -c constraints.txt pip
	$(PY) -m pip install --quiet -c constraints.txt -e '.[stage,local,dev]'
	touch $@

proto: $(STAMP)
	$(PY) proto/generate.py

proto-check: $(STAMP)
	$(PY) proto/generate.py --check

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) .wavepp build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
