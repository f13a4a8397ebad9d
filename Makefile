# Three commands matter: `make serve`, `make quick` while you work and `make test` before you hand it on. Each
# installs what it needs on first use.
# The distribution's interpreter is built with profile feedback: a quarter less CPU per request than
# one that pyenv built with its defaults (docs/decisions/0009). Any 3.11 or newer will do.
PYTHON ?= $(shell for p in /usr/bin/python3.11 python3.11 python3; do \
	$$p -c 'import ensurepip, venv' 2>/dev/null && { command -v $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
COMPILE := pip compile pyproject.toml -q --python-version 3.11 --generate-hashes --no-header --no-annotate
NODE_DIR := tests/conformance/official
CLIENTS_DIR := tests/clients
PYTEST := $(BIN)/pytest --durations=15 --durations-min=1
# Two tests at a time: most of them wait for a server.
TWO := -n 2 --dist loadfile

.PHONY: serve test quick check lint types imports unit property crash-ci freeze conformance cold spark official clients bench crash lock format clean

## serve: a durable server on 127.0.0.1:4437, data in ./data. The pipeline's packages (Spark: 600 MB) are installed
## while it serves; PIPELINE=off leaves them out
serve: $(VENV)/.runtime
ifeq ($(PIPELINE),off)
	$(BIN)/millstream serve --data-dir data --pipeline off
else
	@$(BIN)/python requirements/install_beside.py $(VENV)/.pipeline requirements/pipeline.lock & \
	exec $(BIN)/millstream serve --data-dir data
endif

## test: everything CI runs. Lanes run beside each other, so that what waits (for a lease, for a deadline)
## leaves the cores to what computes; what looks at the clock runs alone. The table at the end has the time of every stage
test: $(VENV)/.dev $(NODE_DIR)/node_modules/.installed $(CLIENTS_DIR)/node_modules/.installed
	$(BIN)/python -m tests.stages \
		--lane check unit property crash-ci \
		--lane clients conformance cold spark \
		--alone official freeze bench-smoke

## quick: for the daily loop, under four minutes: check, the unit tests, and the official suite in memory
quick: $(VENV)/.dev $(NODE_DIR)/node_modules/.installed
	$(BIN)/python -m tests.stages --lane check unit --lane official-memory

check: lint types imports

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

unit: $(VENV)/.dev
	$(PYTEST) tests/unit $(TWO)

property: $(VENV)/.dev
	$(PYTEST) tests/property $(TWO)

crash-ci: $(VENV)/.dev
	$(PYTEST) tests/crash $(TWO)

## freeze: the worst request of each kind, with a watchdog on the event loop
.PHONY: freeze
freeze: $(VENV)/.dev
	$(PYTEST) tests/freeze

conformance: $(VENV)/.dev
	$(PYTEST) tests/conformance -m "not official" $(TWO)

## cold: the cold tier on a folder and on a real S3 server: faults, full disks, damage, restore
cold: $(VENV)/.dev
	$(PYTEST) tests/cold $(TWO)

## spark: compaction on real local Spark sessions (needs Java: apt-get install openjdk-17-jre-headless)
spark: $(VENV)/.dev
	$(PYTEST) tests/spark

official: $(VENV)/.dev $(NODE_DIR)/node_modules/.installed
	$(PYTEST) tests/conformance -m official -s

.PHONY: official-memory
official-memory: $(VENV)/.dev $(NODE_DIR)/node_modules/.installed
	$(PYTEST) tests/conformance/test_official_suite.py -k memory -s

## clients: the official TypeScript and Python clients, also while the server dies and comes back
clients: $(VENV)/.dev $(CLIENTS_DIR)/node_modules/.installed
	$(PYTEST) tests/clients $(TWO)

.PHONY: bench-smoke
bench-smoke: $(VENV)/.dev $(NODE_DIR)/node_modules/.installed
	$(BIN)/python -m bench --smoke
	$(BIN)/python -m bench.soak --smoke
	$(BIN)/python -m bench.soak --smoke --hostile

## bench: every workload against the Node reference server in the same run (needs wrk: apt-get install wrk);
## BASE=dir: against another checkout of Millstream instead, in turns; ONLY=append,catch_up chooses workloads
bench: $(VENV)/.dev $(NODE_DIR)/node_modules/.installed
	$(BIN)/python -m bench $(if $(BASE),--base $(BASE)) $(if $(ONLY),--only $(ONLY))

## soak: 100,000 streams, 2 GiB, mixed load under a small hot budget, everything checked; MINUTES=n
## HOSTILE=1 adds clients who mean harm, under the default settings
.PHONY: soak
soak: $(VENV)/.dev
	$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(HOSTILE),--hostile)

## crash: the long crash hunt, by hand; SEEDS=n seeds, SEED=n starts or replays one
crash: $(VENV)/.dev
	$(BIN)/python -m tests.crash --seeds $(or $(SEEDS),20) $(if $(SEED),--seed $(SEED))

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## docs: rewrite docs/configuration.md from the settings
.PHONY: docs
docs: $(VENV)/.runtime
	$(BIN)/python -m millstream.cli.docs

## lock: refresh the pinned versions
lock: $(VENV)/.dev
	$(BIN)/pip install -q uv
	$(BIN)/uv $(COMPILE) -o requirements/runtime.lock
	$(BIN)/uv $(COMPILE) --extra pipeline --extra lake -c requirements/runtime.lock -o requirements/pipeline.lock
	$(BIN)/uv $(COMPILE) --extra pipeline --extra lake --extra dev -c requirements/pipeline.lock -o requirements/dev.lock

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Without compiling: that takes longer than the download, and most of it is never imported.
$(VENV)/.runtime: $(VENV)/bin/python requirements/runtime.lock pyproject.toml
	@echo "Installing the server (about 290 MB) into $(VENV)"
	$(PIP) uninstall -q -y setuptools
	$(PIP) install --no-compile --require-hashes -r requirements/runtime.lock
	$(PIP) install -q --no-compile --no-deps -e .
	touch $@

$(VENV)/.pipeline: $(VENV)/.runtime requirements/pipeline.lock
	@echo "Installing the data pipeline (Spark and what it needs, about 600 MB) into $(VENV)"
	$(PIP) install -q --require-hashes -r requirements/pipeline.lock
	touch $@

$(VENV)/.dev: $(VENV)/.pipeline requirements/dev.lock
	$(PIP) install -q --require-hashes -r requirements/dev.lock
	touch $@

%/node_modules/.installed: %/package.json %/package-lock.json
	cd $* && npm install --no-save --no-audit --no-fund --loglevel=error
	touch $@

clean:
	rm -rf $(VENV) $(NODE_DIR)/node_modules $(CLIENTS_DIR)/node_modules .mypy_cache .ruff_cache .hypothesis
