# `make demo` and `make test` set up everything they need, once; `make clean` removes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
# The versions of everything else; `make setup LOCK=` takes the newest ones, as Python 3.10 must.
LOCK := constraints.txt
# Every install is pinned to these versions and to this torch, so that nothing replaces it.
PIP := PIP_CONSTRAINT=$(CURDIR)/$(VENV)/constraints.txt $(BIN)/python -m pip install -qq --disable-pip-version-check

# Each of some hundred processes that the tests start would compile npukit anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test pytest check setup wheels release docs clean

demo: setup
	@rm -rf demo-output && mkdir demo-output
	@echo "==> 1/9 Analyse a CUDA project: npukit analyze examples/cuda_project"
	@$(BIN)/npukit analyze examples/cuda_project
	@echo "==> 2/9 Migrate it: npukit migrate examples/cuda_project --output demo-output/migrated"
	@$(BIN)/npukit migrate examples/cuda_project --output demo-output/migrated
	@echo "==> 3/9 Compare the losses on two simulated NPUs: npukit verify examples/cuda_project demo-output/migrated"
	@$(BIN)/npukit verify examples/cuda_project demo-output/migrated --devices 2 --report demo-output/report.html \
	  -- python train.py --steps 20
	@echo "==> 4/9 Look at the simulated cards: npu-smi info"
	@eval "$$($(BIN)/npukit sim env --devices 2)" && npu-smi info
	@echo "==> 5/9 Train a tiny GPT-2: npukit run --device sim --devices 2 examples/gpt2/train.py"
	@$(BIN)/npukit run --device sim --devices 2 examples/gpt2/train.py --out demo-output
	@echo "==> 6/9 Draw its loss: examples/gpt2/show.py"
	@$(BIN)/python examples/gpt2/show.py demo-output
	@echo "==> 7/9 Create a small chat model and questions for it: npukit run --device cpu examples/finetune/make.py"
	@$(BIN)/npukit run --device cpu examples/finetune/make.py demo-output/finetune
	@echo "==> 8/9 Fine-tune it with LoRA: npukit train examples/finetune/lora.yaml --device sim --devices 2"
	@$(BIN)/npukit train examples/finetune/lora.yaml --device sim --devices 2
	@echo "==> 9/9 Ask it how much memory a 910B3 has: npukit chat demo-output/finetune/run --device sim"
	@echo "How much memory does a 910B3 have?" | $(BIN)/npukit chat demo-output/finetune/run --device sim
	@echo "Report of the migration: demo-output/report.html. Loss curve: demo-output/finetune/run/loss.png"
	@echo "All of it in a browser: $(BIN)/npukit studio"

# Side by side: mypy has one core, and for minutes.
test: setup
	@$(MAKE) --no-print-directory -j 2 check pytest

pytest: setup
	@echo "==> pytest"
	@$(BIN)/python -m pytest -n 3 --dist worksteal

check: setup
	@echo "==> ruff and mypy"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run -Werror $$(find src -name '*.c' -o -name '*.cpp' -o -name '*.h')
	@$(BIN)/mypy

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml Makefile $(LOCK)
	@echo "==> Python environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@{ cat $(LOCK) /dev/null; echo "torch==$(TORCH)"; } > $(VENV)/constraints.txt
	@echo "==> torch $(TORCH)"
	@$(PIP) torch
	@echo "==> npukit with its development tools"
	@$(PIP) --editable '.[dev]'
	@echo "==> the simulated NPU"
	@$(BIN)/npukit sim setup
	@touch $@

# A wheel that brings the simulated NPU compiled; VERSIONS="2.13.0 2.7.1" chooses versions of torch, ARCHITECTURES="x86_64
# aarch64" what it is for.
wheels: setup
	@$(PIP) ziglang
	@$(BIN)/python scripts/make_wheels.py $(if $(VERSIONS),--torch $(VERSIONS)) \
	  $(if $(ARCHITECTURES),--architectures $(ARCHITECTURES))

# Builds sdist and wheel, checks them and installs the wheel for every Python from 3.10 to 3.13 that is on the path.
release:
	@$(PYTHON) -m venv $(VENV)-release
	@$(VENV)-release/bin/python -m pip install -qq --disable-pip-version-check build twine
	@$(VENV)-release/bin/python scripts/release.py

# The documentation as a site in site/, which opens from a folder without a network. BUILDER=zensical builds it with
# Zensical; `python -m benchmarks site` looks at the result in a browser.
docs: $(VENV)-docs/.ready
	@$(VENV)-docs/bin/python scripts/make_site.py $(if $(BUILDER),--builder $(BUILDER))

$(VENV)-docs/.ready: Makefile
	@echo "==> Tools for the documentation in $(VENV)-docs"
	@$(PYTHON) -m venv $(VENV)-docs
	@$(VENV)-docs/bin/python -m pip install -qq --disable-pip-version-check mkdocs-material~=9.8 jieba~=0.42 \
	  'zensical<0.1; python_version >= "3.11"'
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-docs $(VENV)-release demo-output site
