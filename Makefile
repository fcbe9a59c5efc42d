# make demo   digits from noise, by class, into runs/
# make accuracy   the demo again, scored by nearest neighbours
# make test   lint, types and most tests; `make test-ci` adds packaging, browser, kernels, pages of the docs and
#             processes, `make test-all` the slow ones too
# make soak   hundreds of short commands under signals, full disks and other faults, for MINUTES=20 with SEED=0
# make fuzz   a million hostile inputs for all readers, half an hour on two cores; INPUTS=20000 for fewer, SEED=1 for others
# make size   lines, files, classes and constants of each package
# make docs   the documentation as a site, in site/, with warnings as errors; `make docs-serve` serves it while you write
# make licences   docs/licences.md anew; `make audit` looks for known vulnerabilities in what the lock has
# Each makes .venv first if it is not there. PYTHON=python3.12 chooses another interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --no-compile --no-deps
# A package whose bytes are not those of the lock is not installed.
LOCKED := $(PIP) --require-hashes
LARGE := ^(torch|triton|nvidia|cuda)

.PHONY: demo accuracy soak size docs docs-serve test test-ci test-all lint types units-test units-test-ci units-test-all fuzz format lock licences audit clean

demo: $(STAMP)
	$(BIN)/cswf run digits

accuracy: $(STAMP)
	$(BIN)/python examples/score_digits.py

MINUTES ?= 20
SEED ?= 0

# One case again: CASE=7:123.
soak: $(STAMP)
	SOAK_SEED=$(SEED) SOAK_CASE=$(CASE) SOAK_CASES=$$((60 * $(MINUTES))) SOAK_UNTIL=$$(($$(date +%s) + 60 * $(MINUTES))) \
	    $(BIN)/pytest tests/soak -m slow -k disturbed_work --numprocesses 2 --maxschedchunk 1

size: $(STAMP)
	$(BIN)/python -m tests.project.size

# Not `--quiet`: MkDocs then counts no warnings, and `--strict` finds none. The variable silences a notice of the theme,
# whose makers have another one; that says nothing about the pages.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

docs: $(STAMP)
	$(MKDOCS) build --strict
	@echo "see site/index.html"

docs-serve: $(STAMP)
	$(MKDOCS) serve --strict

# One thread a worker (tests/conftest.py), one worker a core; types are checked meanwhile. Tests start many processes, and
# bytecode saves each of them seconds: it is kept also where the environment says otherwise.
UNITS := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist worksteal

test test-ci test-all: $(STAMP) lint
	+$(MAKE) --no-print-directory --jobs 2 types units-$@

units-test:
	$(UNITS)

units-test-ci:
	$(UNITS) -m "not slow"

units-test-all:
	HYPOTHESIS_PROFILE=thorough $(UNITS) -m ""

# A target alone: ONLY=model. One input again: also BLOB='…', which Hypothesis prints with a failure.
INPUTS ?= 1000000
ONLY ?= hostile

fuzz: $(STAMP)
	FUZZ_INPUTS=$(INPUTS) FUZZ_SEED=$(SEED) FUZZ_BLOB='$(BLOB)' $(UNITS) tests/fuzz -m fuzz -k "hostile and $(ONLY)"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The locks hold for every supported Python and for both Linux architectures; it needs `uv` on the PATH.
COMPILE := uv pip compile --universal --python-version 3.10 --no-annotate --generate-hashes --no-emit-index-url \
    --custom-compile-command "make lock"

lock:
	$(COMPILE) --extra dev --constraint requirements.in --output-file requirements.lock pyproject.toml
	echo pip-audit | $(COMPILE) --output-file requirements-audit.lock -

# The words above the last table of the page stay.
licences: $(STAMP)
	sed '/^`make licences`/q' docs/licences.md > $(VENV)/licences.md
	echo >> $(VENV)/licences.md
	$(BIN)/python -m piplicenses --with-system --format markdown \
	    --packages $$(sed -n 's/^\([^ #]*\)==.*/\1/p' requirements.lock) >> $(VENV)/licences.md
	mv $(VENV)/licences.md docs/licences.md

# Strict: a package that the database does not answer for is an error too, and not "no known vulnerability".
audit: $(VENV)/audit/.installed
	$(VENV)/audit/bin/python -m pip_audit --strict --requirement requirements.lock --require-hashes --disable-pip

$(VENV)/audit/.installed: requirements-audit.lock
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --no-deps --require-hashes --requirement $<
	touch $@

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "cswf needs Python 3.10 or newer")'
	@echo "setting up $(VENV): some minutes, and on x86-64 some gigabytes"
	@# What is imported is compiled then; most of what is installed never is.
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# The lock has all that its packages need: nothing is to be worked out. To unpack PyTorch takes a core as long as all
	@# others do, so both are done at once.
	awk '/^[^ #]/ {large = /$(LARGE)/} large' requirements.lock > $(VENV)/large.txt
	awk '/^[^ #]/ {large = /$(LARGE)/} !large' requirements.lock > $(VENV)/others.txt
	trap 'kill $$large; exit 130' INT TERM; $(LOCKED) --requirement $(VENV)/large.txt & large=$$!; \
	    $(LOCKED) --requirement $(VENV)/others.txt; others=$$?; wait $$large && exit $$others
	$(PIP) --no-build-isolation --editable .
	touch $(STAMP)

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis
