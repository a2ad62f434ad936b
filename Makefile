# Everything runs from .venv, which is made on first use and again whenever the pins change.
# Needs git, make and Python 3.11 or later; npm as well for the conformance tests, Java 17 for Spark.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Set in many containers. The tests start hundreds of processes, and each would compile all of the code again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help serve test test-unit test-crash test-spark sim lint format bench example-pipeline example-chat docs lock clean

help:
	@echo 'make serve        start the server on 127.0.0.1:4437 with its data in ./data (ARGS="--durability memory ...")'
	@echo 'make test         everything: ruff, mypy, unit, log, http, crash, docs and conformance tests (ARGS="-k name")'
	@echo 'make test-unit    the tests without sockets or processes'
	@echo 'make test-crash   the tests that kill real servers, at more moments than make test (SEEDS=50)'
	@echo 'make test-spark   Spark in every mode, drivers, executors, servers and jobs killed: 30 minutes and more (ARGS="-k jobs")'
	@echo 'make sim          the simulation of the storage engine: SEEDS=5000 runs so many, SEED=17 shows one'
	@echo 'make lint         ruff and mypy'
	@echo 'make format       let ruff rewrite the code'
	@echo 'make bench        all benchmarks, or one: ONLY=append, read, sse, storage, bootstrap, fork, changes, access, client, spark or proxy'
	@echo 'make example-pipeline  a server, data, and the Spark pipeline up to a page of plots (examples/pipeline)'
	@echo 'make example-chat      a chat whose answers survive a reload, in your browser (examples/resumable_chat)'
	@echo 'make docs         regenerate the generated pages'
	@echo 'make lock         renew the pins in requirements/dev.txt'
	@echo 'make clean        remove the virtual environment and caches'

$(STAMP): pyproject.toml requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Holdfast needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) -V 2>&1 || echo missing)." >&2; \
	  echo "Name another with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "This Python has no venv module. On Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'Installing into $(VENV) ...'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

serve: $(STAMP)
	@exec $(BIN)/holdfast serve $(ARGS)

# pytest comes last, so that its closing line is the last line.
test: lint
	@$(BIN)/python -m pytest $(ARGS)

test-unit: $(STAMP)
	@$(BIN)/python -m pytest tests/unit tests/log $(ARGS)

test-crash: $(STAMP)
	@CRASH_SEEDS=$(or $(SEEDS),10) $(BIN)/python -m pytest tests/crash $(ARGS)

test-spark: $(STAMP)
	@SPARK_MATRIX=1 $(BIN)/python -m pytest -n 0 tests/spark_matrix $(ARGS)

sim: $(STAMP)
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)
	@$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(ARGS)

example-pipeline: $(STAMP)
	@$(BIN)/python examples/pipeline/run.py

example-chat: $(STAMP)
	@exec $(BIN)/python examples/resumable_chat/run.py

docs: $(STAMP)
	@$(BIN)/python -m holdfast.cli.settings_page
	@$(BIN)/python -m holdfast.cli.pipeline.options_page
	@$(BIN)/python -m tools.coverage_page

# One set of pins for every supported Python: uv resolves for all of them at once.
lock: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url \
	  --no-annotate --no-header --upgrade --group dev pyproject.toml -o requirements/dev.txt

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
