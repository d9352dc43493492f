# `make demo` and `make test` set up all they need, once; `make clean` removes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
# Every install is held to this torch, so that nothing replaces it.
PIP := PIP_CONSTRAINT=$(CURDIR)/$(VENV)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check
export OMP_NUM_THREADS ?= 2

.PHONY: demo test check setup clean

demo: setup
	$(BIN)/python examples/gpt2/demo.py

test: setup check
	$(BIN)/python -m pytest

check: setup
	@echo "==> ruff and mypy"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml Makefile
	@echo "==> Python environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "torch==$(TORCH)" > $(VENV)/constraints.txt
	@echo "==> torch $(TORCH)"
	@$(PIP) torch
	@echo "==> npukit with its development tools"
	@$(PIP) --editable '.[dev]'
	@echo "==> the simulated NPU"
	@$(BIN)/npukit sim setup
	@touch $@

clean:
	rm -rf $(VENV) demo-output
