# Everything a newcomer needs. Setup is a stamp file: a second `make` of anything spends no time on it.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synced
# The lock's own uv: pip brings it once, `uv pip sync` then keeps it.
UV_VERSION := $(shell sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements/dev.lock)
PYTEST_WORKERS ?= 2

.PHONY: setup demo test test-fast test-core compose-test serve bench lint format lock clean

setup: $(STAMP)

$(STAMP): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else "DASL needs Python 3.11 to 3.13; this is %d.%d. Say which one: make PYTHON=python3.12" % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@# Compiled at once: else each process, where Python is not to write (PYTHONDONTWRITEBYTECODE), compiles all
	@# that it imports: 16 s instead of 6 for PyTorch and Ray.
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip sync --quiet --compile-bytecode requirements/dev.lock
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m examples.demo

test: $(STAMP)
	$(BIN)/python -m pytest tests -n $(PYTEST_WORKERS) --dist loadgroup

test-fast: $(STAMP)
	$(BIN)/python -m pytest tests -n $(PYTEST_WORKERS) --dist loadgroup -m "not slow"

# dasl_core by itself, without Ray, FastAPI and SQLAlchemy, with the oldest torch that it promises.
CORE_PYTHON ?= python3.12
CORE_TORCH ?= 2.11
CORE_VENV := build/core-$(CORE_TORCH)
test-core: $(STAMP)
	$(BIN)/uv venv --quiet --allow-existing --python $(CORE_PYTHON) $(CORE_VENV)
	VIRTUAL_ENV=$(CORE_VENV) $(BIN)/uv pip install --quiet --editable ".[core]" "torch==$(CORE_TORCH).*" \
		hypothesis lightly "pytest<9.2" pytest-timeout pytest-xdist scikit-learn
	$(CORE_VENV)/bin/python -m pytest tests/dasl_core -n $(PYTEST_WORKERS) --dist loadgroup

# Needs an engine; how compose is called here, such as COMPOSE="podman compose".
COMPOSE ?= docker compose
compose-test: $(STAMP)
	$(BIN)/python -m tests.compose.run --compose "$(COMPOSE)"

serve: $(STAMP)
	$(BIN)/dasl serve

bench: $(STAMP)
	$(BIN)/python -m benchmarks

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m tools.spec_tables

# One resolution for all: the locks of the images are parts of the one that the tests run with.
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header
PART = $(LOCK) --no-annotate --constraint requirements/dev.lock

lock: $(STAMP)
	$(LOCK) --all-extras pyproject.toml -o requirements/dev.lock
	$(PART) --extra server pyproject.toml -o requirements/server.lock
	$(PART) --extra training pyproject.toml -o requirements/worker.lock
	$(PART) --extra training pyproject.toml -o requirements/worker-cpu.lock \
		$$(sed -nE 's/^(torch|torchvision|triton|(cuda|nvidia)-[a-z0-9-]+)==.*/--no-emit-package \1/p' requirements/worker.lock)
	echo hatchling | $(PART) - -o requirements/build.lock

clean:
	rm -rf $(VENV) build
