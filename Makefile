# Everything a newcomer needs. Setup is a stamp file: a second `make` of anything spends no time on it.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synced
# The lock's own uv: pip brings it once, `uv pip sync` then keeps it.
UV_VERSION := $(shell sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements/dev.lock)
PYTEST_WORKERS ?= 2

.PHONY: setup demo test test-fast serve bench lint format lock clean

setup: $(STAMP)

$(STAMP): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else "DASL needs Python 3.11 to 3.13; this is %d.%d. Say which one: make PYTHON=python3.12" % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip sync --quiet requirements/dev.lock
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m examples.demo

test: $(STAMP)
	$(BIN)/python -m pytest tests -n $(PYTEST_WORKERS) --dist loadgroup

test-fast: $(STAMP)
	$(BIN)/python -m pytest tests -n $(PYTEST_WORKERS) --dist loadgroup -m "not slow"

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

lock: $(STAMP)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --all-extras pyproject.toml -o requirements/dev.lock

clean:
	rm -rf $(VENV) build
