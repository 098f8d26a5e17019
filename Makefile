# `make` prints the targets. Everything runs in .venv, which is created on first use and updated when a
# requirements file changes. After that, no network is needed.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help up demo stores test check lint fmt client docs wheel screens chaos engines mutants bench budget simulate install install-dev install-docs migrate-check compose-check clean

PY := .venv/bin/python
DEPTRY := .venv/bin/deptry --config .ci/deptry.toml
N ?=
# One more than processors, because tests often wait for servers.
TEST_PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
MINUTES ?= 60
SAMPLE ?= 150
SEED ?=
KILLS ?= 0
OPERATIONS ?= 0
REPLICA ?=
ENGINE ?=
TABLES ?= 1000000
DAYS ?=
WORKERS ?=
WRITE ?=
MUTANTS ?=
STORES ?=
PYTEST ?=
# Packages with static checks. The demo and the benchmarks are checked by running them.
PACKAGES := config catalog api tasks server monodon

help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter; MONODON_PORT, MONODON_HOME, DATABASE_URL and"
	@echo "  REDIS_URL are read by 'make up' (see docs/operations.md)."

up: install ## start Monodon in the foreground: database, broker, web, worker, beat
	@exec $(PY) -m server up --with-parent

demo: install-dev ## load real tables into a running Monodon
	@exec $(PY) -m examples.demo

stores: install-dev ## start an S3 store on this machine, to try object storage (STORES="--moto --azurite --gcs" adds others)
	@exec $(PY) -m tests.stores $(STORES)

test: install-dev ## run all tests (PYTEST="-k name" chooses)
	@$(PY) -m tests.stores.components || echo "The tests of object stores run with moto alone."
	@exec $(PY) -m pytest -n $(TEST_PROCESSES) --dist loadgroup --max-worker-restart=0 $(PYTEST)

check: lint test ## the gate: formatter, linter, imports, types, migrations, compose file, tests

lint: install-dev ## the static part of the gate
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	.venv/bin/lint-imports
	$(PY) .ci/names.py
	$(PY) .ci/phrases.py
	$(DEPTRY) $(PACKAGES) --requirements-files requirements.txt
	$(DEPTRY) . --requirements-files requirements-dev.txt
	$(PY) -m mypy catalog api tasks server monodon
	$(PY) .ci/docs
	@$(MAKE) --no-print-directory migrate-check compose-check

migrate-check: install-dev
	$(PY) manage.py makemigrations --check --dry-run

compose-check:
	@if docker compose version >/dev/null 2>&1; then \
		echo "docker compose config -q"; docker compose config -q; \
	else \
		echo "docker compose config: skipped, there is no docker compose here"; \
	fi

fmt: install-dev ## format the code and fix what can be fixed
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

client: install-dev ## generate monodon/client from the OpenAPI document of the management API
	@MONODON_HOME=$$(mktemp -d) exec $(PY) .ci/client.py

docs: install-docs ## build the documentation into site/, which the server shows at /help
	@exec $(PY) .ci/docs

wheel: install-dev ## build the wheel and the source distribution into dist/
	@$(PY) .ci/docs
	@exec $(PY) -m hatchling build

screens: install-dev ## take the screenshots of the docs again, in Chromium
	@MONODON_REQUIRE_BROWSER=1 MONODON_SCREENS=docs/images exec $(PY) -m pytest tests/browser $(PYTEST)

chaos: install-dev ## inject faults into a separate server and check every answer (MINUTES=60 SEED=7), or repeat the kill tests (N=20)
	@exec $(if $(N),env MONODON_CHAOS_ROUNDS=$(N) $(PY) -m pytest tests/chaos tests/clients -m chaos --timeout 0 $(PYTEST),\
		$(PY) -m tests.chaos.harness --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) \
			--kills $(KILLS) --operations $(OPERATIONS) $(if $(REPLICA),--replica))

engines: install-dev ## run Trino, Flink, Sail, ClickHouse, dlt, Iceberg's Java, Go and Rust libraries, and longer variants of other tests (ENGINE=trino)
	@exec $(PY) -m pytest $(if $(ENGINE),tests/engines/$(ENGINE),tests) -m engines $(PYTEST)

mutants: install-dev ## change the code in SAMPLE places and check that tests fail (SAMPLE=200 SEED=7)
	@exec $(PY) .ci/mutants --sample $(SAMPLE) $(if $(SEED),--seed $(SEED)) $(MUTANTS)

bench: install-dev ## measure against the reference server and plain PostgreSQL
	@exec $(PY) -m benchmarks

budget: install-dev ## measure the CPU time of frequent requests against their budgets (benchmarks/budget.toml)
	@exec $(PY) -m benchmarks budget

simulate: install-dev ## simulate the maintenance scheduler (TABLES=100000 SEED=7 DAYS=3; WRITE=1 puts the figures into the docs)
	@exec $(PY) -m benchmarks.simulation --tables $(TABLES) $(if $(SEED),--seed $(SEED)) \
		$(if $(DAYS),--days $(DAYS)) $(if $(WORKERS),--workers $(WORKERS)) $(if $(WRITE),--write)

install:
	@PYTHON="$(PYTHON)" sh .ci/venv requirements.txt

install-dev:
	@PYTHON="$(PYTHON)" sh .ci/venv requirements-dev.txt

install-docs:
	@PYTHON="$(PYTHON)" sh .ci/venv requirements-docs.txt

clean: ## remove the virtual environment, the built documentation and caches (the data in .monodon stays)
	rm -rf .venv .cache site .mutants.json .mypy_cache .pytest_cache .ruff_cache .import_linter_cache staticfiles
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
