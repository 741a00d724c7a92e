# `make demo` and `make serve` install what runs DASL, every other target the developers' tools, too. Stamp files mark
# a complete setup, so that later `make` calls skip it.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.serve
DEV := $(VENV)/.dev
CLIENT := service/client/sync/client.py
STAMP := $(DEV) $(CLIENT)
# The version of uv in the locks: installed once by pip, then kept by `uv pip sync`.
UV_VERSION := $(shell sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements/dev.lock)
PYTEST_WORKERS ?= 2

.PHONY: setup demo test test-rest test-all test-explore test-core test-oldest compose-test serve bench docs lint format lock clean

setup: $(STAMP)

# Install the packages of lock $(1), which take about $(2) GB. Bytecode is compiled now: with
# PYTHONDONTWRITEBYTECODE each process would compile all its imports again (16 s instead of 6 s for PyTorch and Ray).
define install
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else "DASL needs Python 3.11 to 3.13; this is %d.%d. Choose another one: make PYTHON=python3.12" % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@echo "Installing PyTorch, Ray and other packages into $(VENV) (about $(2) GB, some minutes) ..."
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip sync --quiet --compile-bytecode requirements/$(1).lock
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q dasl_core service workers examples
endef

# Where developers' tools are, they stay.
$(RUN): requirements/serve.lock pyproject.toml hatch_build.py
	$(call install,$(if $(wildcard $(DEV)),dev,serve),7)
	touch $@

$(DEV): requirements/dev.lock pyproject.toml hatch_build.py
	$(call install,dev,8)
	$(BIN)/python -m compileall -q benchmarks tests tools
	touch $@

# The synchronous client is written again when its source has changed.
$(CLIENT): tools/sync_client.py $(wildcard service/client/aio/*.py)
	$(PYTHON) tools/sync_client.py
	touch $@

demo: $(RUN) $(CLIENT)
	$(BIN)/python -m examples.demo

# Plugins are named because pytest rewrites the assertions of all packages whose plugins it finds by itself:
# several CPU seconds in each process for those of hypothesis and schemathesis.
PYTEST := PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -p xdist -p pytest_timeout \
	-p _hypothesis_pytestplugin -p schemathesis.pytest.plugin -n $(PYTEST_WORKERS) --dist loadgroup --no-loadscope-reorder

# What a change needs before it is sent, in a few minutes; the rest; and both. Schemathesis makes its tests, which are
# slow ones, when they are collected: 8 s in each process.
test: $(STAMP)
	$(PYTEST) tests -m "not slow" --ignore=tests/service/test_schemathesis.py

test-rest: $(STAMP)
	$(PYTEST) tests -m slow

test-all: test test-rest

# The properties and state machines on new examples each time; those that failed are tried first at the next run.
test-explore: $(STAMP)
	$(PYTEST) tests -m "hypothesis and not slow" --hypothesis-profile explore

# Test dasl_core alone, without Ray, FastAPI and SQLAlchemy, with the oldest supported torch.
CORE_PYTHON ?= python3.12
CORE_TORCH ?= 2.11
CORE_VENV := build/core-$(CORE_TORCH)
test-core: $(STAMP)
	$(BIN)/uv venv --quiet --allow-existing --python $(CORE_PYTHON) $(CORE_VENV)
	VIRTUAL_ENV=$(CORE_VENV) $(BIN)/uv pip install --quiet --editable ".[core,formats]" "torch==$(CORE_TORCH).*" \
		hypothesis lightly "pytest<9.2" pytest-timeout pytest-xdist scikit-learn
	$(CORE_VENV)/bin/python -m pytest tests/dasl_core -n $(PYTEST_WORKERS) --dist loadgroup

# What depends on Python's own version, on the oldest at hand: the distribution's, if it is supported. With the
# packages that are locked, which cost no second copy on the disk.
OLDEST_PYTHON ?= $(firstword $(wildcard /usr/bin/python3.11 /usr/bin/python3.12 /usr/bin/python3.13) $(PYTHON))
OLDEST_VENV := build/oldest
OLDEST_TESTS := tests/test_oldest_python.py tests/dasl_core/test_decode.py tests/dasl_core/test_ingest.py \
	tests/dasl_core/test_locations.py tests/dasl_core/test_manifest.py tests/dasl_core/test_run_dir.py \
	tests/dasl_core/test_spec.py tests/dasl_core/test_yaml.py
test-oldest: $(STAMP)
	$(BIN)/uv venv --quiet --allow-existing --python $(OLDEST_PYTHON) $(OLDEST_VENV)
	VIRTUAL_ENV=$(OLDEST_VENV) $(BIN)/uv pip sync --quiet requirements/dev.lock
	$(OLDEST_VENV)/bin/python -m pytest $(OLDEST_TESTS) -m "not slow"

# Needs a container engine. Another compose command: COMPOSE="podman compose".
COMPOSE ?= docker compose
compose-test: $(STAMP)
	@# The images stay, of the form that most people use.
	test -z "$(wildcard docker/wheels/torch-*.whl)" || $(BIN)/python -m tests.compose.run --cpu --compose "$(COMPOSE)"
	$(BIN)/python -m tests.compose.run --compose "$(COMPOSE)"

serve: $(RUN) $(CLIENT)
	$(BIN)/dasl serve

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# -W: a broken link or a page that the navigation lacks is an error.
docs: $(STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -c tools/site -d build/doctrees . build/site
	@echo "build/site/index.html"

# TypeScript and Biome, which check the page's modules: `make lint` and `make format` alone need Node.js.
PAGE_TOOLS := tools/page/node_modules
BIOME := $(PAGE_TOOLS)/.bin/biome
$(PAGE_TOOLS): tools/page/package-lock.json
	@command -v npm > /dev/null || { echo "The page's modules are checked with Node.js 18 or newer. Install it and npm: apt-get install nodejs npm" >&2; exit 1; }
	npm ci --prefix tools/page --no-audit --no-fund --loglevel=error
	touch $(PAGE_TOOLS)

lint: $(STAMP) $(PAGE_TOOLS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.environments
	$(BIN)/python -m tools.page_types
	$(BIOME) ci --config-path=tools/page --error-on-warnings service/web/js

format: $(STAMP) $(PAGE_TOOLS)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIOME) check --config-path=tools/page --write service/web/js
	$(BIN)/python -m tools.spec_tables

# One resolution: the locks of the images are subsets of the lock that the tests use.
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header
PART = $(LOCK) --no-annotate --constraint requirements/dev.lock

lock: $(STAMP)
	$(LOCK) --all-extras pyproject.toml -o requirements/dev.lock
	echo uv hatchling editables | tr ' ' '\n' | \
		$(PART) --extra server --extra training --extra formats pyproject.toml - -o requirements/serve.lock
	$(PART) --extra server --extra oidc pyproject.toml -o requirements/server.lock
	$(PART) --extra training --extra formats pyproject.toml -o requirements/worker.lock
	$(PART) --extra training --extra formats pyproject.toml -o requirements/worker-cpu.lock \
		$$(sed -nE 's/^(torch|torchvision|triton|(cuda|nvidia)-[a-z0-9-]+)==.*/--no-emit-package \1/p' requirements/worker.lock)
	echo hatchling | $(PART) - -o requirements/build.lock

# The rest of build/ may be users' results: the default of `dasl train` is build/train.
clean:
	rm -rf $(VENV) build/core-* build/oldest build/doctrees build/site
