# Targets install what they need into .venv: the server's packages for `make serve`, more for tests, benchmarks and Spark.
# Needs make and Python 3.11 or later. Tests also use npm, Java 17 and Chromium; what is missing is skipped with a loud line.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
SERVER := $(VENV)/.installed-server
SPARK := $(VENV)/.installed-spark
BENCH := $(VENV)/.installed-bench
DEV := $(VENV)/.installed-dev
OLDEST := $(VENV)/spark-oldest

# Many containers set this. The tests start hundreds of processes, and each would compile all of the code again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help serve test test-all test-unit test-crash test-attack test-spark sim lint format bench example-pipeline example-chat docs package lock clean

help:
	@echo 'Times are for two cores. The first run of a target also installs packages: 20 s for the server, 2 to 4 minutes for the rest.'
	@echo
	@echo 'make serve             start the server on 127.0.0.1:4437 with its data in ./data; seconds (ARGS="--durability memory ...")'
	@echo 'make test              every feature once, linters and types included; 6 minutes (ARGS="-k name")'
	@echo 'make test-all          what make test leaves out: kill loops, more seeds, reruns over ASGI, repeated suites, other Sparks; 12 minutes'
	@echo 'make test-unit         tests without sockets or processes; 1 minute'
	@echo 'make test-crash        tests that kill real servers, at more moments than make test-all; 10 minutes (SEEDS=50)'
	@echo 'make test-attack       floods of a real server, with limits on its memory and on the wait of others; 2 minutes (ARGS="-k heads")'
	@echo 'make test-spark        Spark in every mode, with drivers, executors, servers and jobs killed; 30 minutes (ARGS="-k jobs")'
	@echo 'make sim               the simulation of the storage engine; 1 minute (SEEDS=5000 for more runs, SEED=17 to show one)'
	@echo 'make lint              ruff and mypy; 15 seconds'
	@echo 'make format            let ruff rewrite the code; 1 second'
	@echo 'make bench             all benchmarks, 1 hour, or one of them, minutes: ONLY=append, read, sse, storage, bootstrap, fork,'
	@echo '                       changes, access, client, spark or proxy'
	@echo 'make example-pipeline  a server, data, and the Spark pipeline up to a page of plots (examples/pipeline); 2 minutes'
	@echo 'make example-chat      a chat whose responses survive a reload, in your browser (examples/resumable_chat); seconds'
	@echo 'make docs              write the generated pages again; seconds'
	@echo 'make package           build the wheel and the source distribution, and check them; 30 seconds'
	@echo 'make lock              renew the pins in requirements/; 1 minute'
	@echo 'make clean             remove the virtual environment and caches'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Holdfast needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) -V 2>&1 || echo missing)." >&2; \
	  echo "Name another with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "This Python has no venv module. On Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(SERVER): pyproject.toml requirements/server.txt | $(BIN)/python
	@echo 'Installing the server into $(VENV):'
	@$(PIP) -r requirements/server.txt
	@$(PIP) --no-deps --editable .
	@touch $@

# $(VENV)/.installed-X has the packages of requirements/X.txt besides the server's.
$(VENV)/.installed-%: requirements/%.txt $(SERVER)
	@echo 'Installing the packages of requirements/$*.txt into $(VENV):'
	@$(PIP) -r requirements/$*.txt
	@touch $@

# Another PySpark beside the newest one; tests put it first on the path.
$(OLDEST): requirements/spark-oldest.txt | $(DEV)
	@echo 'Installing the oldest supported PySpark into $@:'
	@rm -rf $@
	@$(PIP) --no-deps --target $@ -r $<
	@touch $@

serve: $(SERVER)
	@exec $(BIN)/holdfast serve $(ARGS)

# pytest comes last, so that its closing line is the last line.
test: lint
	@$(BIN)/python -m pytest -m 'not slow' $(ARGS)

# The attacks measure memory and waits, so they run first and alone; they are left out where ARGS chooses tests.
test-all: $(DEV) $(OLDEST) package $(if $(ARGS),,test-attack)
	@THOROUGH=1 $(BIN)/python -m pytest -m 'slow or hypothesis or thorough' --ignore=tests/attack $(ARGS)

test-unit: $(DEV)
	@$(BIN)/python -m pytest tests/unit tests/log $(ARGS)

test-crash: $(DEV)
	@CRASH_SEEDS=$(or $(SEEDS),10) $(BIN)/python -m pytest tests/crash $(ARGS)

test-attack: $(DEV)
	@$(BIN)/python -m pytest -n 0 tests/attack $(ARGS)

test-spark: $(DEV) $(OLDEST)
	@SPARK_MATRIX=1 $(BIN)/python -m pytest -n 0 tests/spark_matrix $(ARGS)

sim: $(DEV)
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

lint: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(DEV)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(if $(filter spark,$(or $(ONLY),spark)),$(DEV),$(BENCH))
	@$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(ARGS)

example-pipeline: $(SPARK)
	@$(BIN)/python examples/pipeline/run.py

example-chat: $(SERVER)
	@exec $(BIN)/python examples/resumable_chat/run.py

docs: $(DEV)
	@$(BIN)/python -m holdfast.cli.option_pages
	@$(BIN)/python -m tools.coverage_page

package: $(DEV)
	@rm -rf dist
	@$(BIN)/python -m build --quiet
	@$(BIN)/twine check --strict dist/*

# One set of pins for every supported Python: uv resolves for all of them at once. What a part installs is a subset of requirements/dev.txt.
UV := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header
lock: $(SERVER)
	@$(PIP) --quiet uv
	@$(UV) --upgrade --all-extras --group dev pyproject.toml -o requirements/dev.txt
	@$(UV) -c requirements/dev.txt pyproject.toml -o requirements/server.txt
	@$(UV) -c requirements/dev.txt --extra spark pyproject.toml -o requirements/spark.txt
	@$(UV) -c requirements/dev.txt --extra bench pyproject.toml -o requirements/bench.txt
	@sed -n 's/.*"pyspark\[sql\]\(>=[0-9.]*\)",/pyspark\1/p' pyproject.toml | $(UV) --resolution lowest-direct - -o requirements/spark-oldest.txt

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
