# Two set-up commands, each from a fresh machine: `make demo` and `make test`. See README.md.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
QUESTION ?= What is the capital of France?
MODEL ?=

# Installing torch first keeps pip from taking a newer or larger build than the one the project is tested with.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[demo]'
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,tpu]'
	touch $@

.PHONY: demo test lint hooks clean

demo: $(VENV)/.demo  ## A real model answers on device tpu: make demo QUESTION="..." MODEL=path-or-hub-id
	$(BIN)/python examples/chat.py $(if $(MODEL),--model "$(MODEL)") "$(QUESTION)"

test: $(VENV)/.dev  ## Lint, types and all tests, as CI does
	PATH="$(abspath $(BIN)):$$PATH" sh tools/check.sh
	$(BIN)/python -m pytest -q -n 2 --dist loadfile tests

lint: $(VENV)/.dev
	PATH="$(abspath $(BIN)):$$PATH" sh tools/check.sh

hooks: $(VENV)/.dev
	$(BIN)/pre-commit install

clean:
	rm -rf $(VENV) build *.egg-info
