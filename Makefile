# make demo   digits from noise, by class, into runs/
# make accuracy   the demo again, scored by nearest neighbours
# make test   lint, types and tests; `make test-all` adds the slow ones
# Each makes .venv first if it is not there. PYTHON=python3.12 chooses another interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo accuracy test test-all lint format lock clean

demo: $(STAMP)
	$(BIN)/cswf run digits

accuracy: $(STAMP)
	$(BIN)/python examples/score_digits.py

test: $(STAMP) lint
	$(BIN)/pytest

test-all: $(STAMP) lint
	$(BIN)/pytest -m ""

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The lock holds for every supported Python and for both Linux architectures; it needs `uv` on the PATH.
lock:
	uv pip compile --universal --python-version 3.10 --no-annotate --extra dev --constraint requirements.in \
	    --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "cswf needs Python 3.10 or newer")'
	@echo "setting up $(VENV): some minutes, and on x86-64 some gigabytes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
