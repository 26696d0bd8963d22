# The two commands of README.md are `make demo` and `make test`; both set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
PROTOS := $(sort $(wildcard proto/wavepp/v1/*.proto))

.PHONY: demo test test-long lint proto proto-check format lock clean

demo: $(STAMP)
	$(PY) -m wavepp.cli demo

test: $(STAMP) lint
	$(PY) -m pytest

# What takes longer than anybody wants to wait for at each change.
test-long: $(STAMP)
	$(PY) -m pytest -m long --timeout 600
	$(PY) -m perf.faults
	$(PY) -m perf.idle

lint: $(STAMP) proto-check
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) docs/generate_configuration.py --check
	$(PY) docs/draw_states.py --check

# The lock file fixes every version; pyproject.toml only gives ranges.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "WavePP needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11 ...")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV): torch is large, so this takes minutes'
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

# Exact versions of a fresh resolution of pyproject.toml's ranges; torch stays as it is pinned.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	grep '^torch==' constraints.txt > build/torch.txt
	build/lock/bin/python -m pip install --quiet --upgrade pip
	build/lock/bin/python -m pip install --quiet -c build/torch.txt -e '.[stage,local,dev]'
	(echo '# Exact versions of all that make installs (Linux, Python 3.11 or newer). To renew: make lock'; \
	 build/lock/bin/python -m pip freeze --exclude-editable --all | sed 's/+cpu//' | grep -v '^setuptools==') > constraints.txt

clean:
	rm -rf $(VENV) .wavepp build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
