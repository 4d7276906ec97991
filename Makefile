# `make demo` and `make test` work on a bare machine with python3 (3.11 or newer), pip and make,
# and write nothing outside this folder.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LOWEST := .venv-lowest
# The torch of `make test-lowest`, where the lowest that pyproject.toml allows cannot be had: LOWEST_TORCH=2.13.0
LOWEST_TORCH ?=
READY  := $(VENV)/.ready
# The hashes that installed packages must have; `make LOCK=` installs without, where an index has packages of its own build.
LOCK ?= requirements.lock
# Where domainwise is there already: make reproduce-cmnist DOMAINWISE='python3 -m domainwise'
DOMAINWISE ?= $(BIN)/domainwise

export PIP_CACHE_DIR := $(CURDIR)/$(VENV)/cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export MPLCONFIGDIR  := $(CURDIR)/$(VENV)/cache/matplotlib

.PHONY: setup demo test lint test-slow test-gpu test-lowest coverage bench images docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "domainwise needs Python 3.11 or newer: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(if $(LOCK),$(BIN)/pip install --quiet --require-hashes --no-deps --requirement $(LOCK))
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	rm -rf $(VENV)/cache/pip
	touch $@

demo: $(READY)
	$(BIN)/domainwise demo

test: lint
	$(BIN)/pytest -n 2 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-slow: $(READY)
	$(BIN)/pytest -m slow

test-gpu: $(READY)
	$(BIN)/pytest -m gpu

# The test suite with the lowest versions that pyproject.toml allows, in a virtual environment of its own.
test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/pytest -n 2 --dist worksteal

$(LOWEST)/.ready: pyproject.toml tools/lowest_versions.py
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) tools/lowest_versions.py $(LOWEST_TORCH:%=torch==%) > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/pip install --quiet --no-cache-dir --constraint $(LOWEST)/constraints.txt --editable '.[dev]'
	touch $@

# Lines run in the processes of the test suite; the worker processes that tests start are not counted.
coverage: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal --cov --cov-report term --cov-report html
	@echo 'open htmlcov/index.html'

bench: $(READY)
	$(BIN)/python benchmarks/cpu_step.py
	$(BIN)/python benchmarks/collection.py
	$(BIN)/python benchmarks/augment.py
	$(if $(wildcard $(DOMAINWISE_DATA)/PACS),$(BIN)/python benchmarks/decode.py $(DOMAINWISE_DATA)/PACS)

# The pictures of the documents, from results/ and from a few short trainings; IMAGES=demo draws that one alone.
images: $(READY)
	$(BIN)/python tools/doc_images.py $(IMAGES)

docs: $(READY)
	$(BIN)/python tools/methods_page.py > docs/methods.md
	$(BIN)/python tools/commands_page.py > docs/commands.md
	$(BIN)/python tools/generated_docs.py README.md docs/*.md
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build/html
	@echo 'open docs/_build/html/index.html'

include experiments.mk

clean:
	rm -rf $(VENV) $(LOWEST) build dist htmlcov .coverage .pytest_cache .ruff_cache .mypy_cache
