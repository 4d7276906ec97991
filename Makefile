# `make demo` and `make test` work on a bare machine with python3 (3.11 or newer), pip and make,
# and write nothing outside this folder.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Where domainwise is there already: make reproduce-cmnist DOMAINWISE='python3 -m domainwise'
DOMAINWISE ?= $(BIN)/domainwise

export PIP_CACHE_DIR := $(CURDIR)/$(VENV)/cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export MPLCONFIGDIR  := $(CURDIR)/$(VENV)/cache/matplotlib

.PHONY: setup demo test lint test-slow test-gpu bench docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "domainwise needs Python 3.11 or newer: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	rm -rf $(PIP_CACHE_DIR)
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

bench: $(READY)
	$(BIN)/python benchmarks/cpu_step.py
	$(BIN)/python benchmarks/collection.py
	$(BIN)/python benchmarks/augment.py
	$(if $(wildcard $(DOMAINWISE_DATA)/PACS),$(BIN)/python benchmarks/decode.py $(DOMAINWISE_DATA)/PACS)

docs: $(READY)
	$(BIN)/python tools/methods_page.py > docs/methods.md
	$(BIN)/python tools/commands_page.py > docs/commands.md
	$(BIN)/python tools/generated_docs.py README.md docs/*.md
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build/html
	@echo 'open docs/_build/html/index.html'

include experiments.mk

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache
