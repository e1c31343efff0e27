# wal2lake: `make demo` and `make test` do all set-up themselves.

RUN := .venv/bin/python
ROUNDS ?= 20
SECONDS ?= 600
SEEDS ?= 5
SEED ?=
MAJORS ?= 14 16
# A file is run by one worker; the order is that of the folders, where those with long tests come first.
BY_FILE := --dist loadfile --no-loadscope-reorder
ON_EVERY_MAJOR := $(addprefix tests/,integration/test_binary_against_text.py \
    integration/test_decode_against_postgres.py integration/test_exactness.py integration/test_following.py \
    integration/test_streamed_transactions.py integration/test_slot.py fault/test_schema_changes.py)

.PHONY: help setup demo unit test test-slow proofs-short test-majors kill-test life-test failure-test ddl-test hostile-test proof-million proof-pgbench lint format bench bench-full docs clean

help: ## show these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## make .venv, find or install Java, fetch Spark's jars; at once when it is all there
	@scripts/setup

demo: setup ## a live shop database and its mirror, for a minute
	@$(RUN) -m wal2lake demo --seconds 60

unit: setup ## the pure parts, in seconds
	$(RUN) -m pytest -q -n 2 tests/unit

test: setup ## every test that takes seconds
	$(RUN) -m pytest -n 2 $(BY_FILE) -m "not slow"

test-slow: setup ## every proof in its long form: takes hours
	$(RUN) -m pytest -m slow

proofs-short: setup ## every proof in a short form, also on other PostgreSQL majors: at most 20 minutes
	WAL2LAKE_TEST_PROOFS=short $(RUN) -m pytest -n 3 $(BY_FILE) -m "slow and not alone"
	WAL2LAKE_TEST_PROOFS=short $(RUN) -m pytest -m alone
	@$(MAKE) --no-print-directory test-majors

test-majors: setup ## types, order and DDL on other PostgreSQL majors; MAJORS="14 16"
	@for major in $(MAJORS); do \
	    echo "PostgreSQL $$major"; \
	    WAL2LAKE_TEST_PG_BIN=$$($(RUN) scripts/postgres_binaries.py $$major) \
	        $(RUN) -m pytest -q -n 2 $(BY_FILE) -m "not slow" $(ON_EVERY_MAJOR) || exit 1; \
	done

kill-test: setup ## kill -9 at random moments under load; ROUNDS=20, SEED= repeats one
	WAL2LAKE_TEST_ROUNDS=$(ROUNDS) WAL2LAKE_TEST_SEED=$(SEED) $(RUN) -m pytest -s -m slow tests/fault/test_kills.py

ddl-test: ROUNDS = 500
ddl-test: setup ## random DDL and DML against the source; ROUNDS=500, SEED= repeats one
	WAL2LAKE_TEST_ROUNDS=$(ROUNDS) WAL2LAKE_TEST_SEED=$(SEED) $(RUN) -m pytest -s -m slow tests/fault/test_random_ddl.py tests/fault/test_schema_changes.py

hostile-test: setup ## awkward keys, partitions and tables, exact or refused; SEEDS=5, SEED= begins with one
	WAL2LAKE_TEST_SEEDS=$(SEEDS) WAL2LAKE_TEST_SEED=$(SEED) $(RUN) -m pytest -s -m slow tests/acceptance/test_hostile_schemas.py

life-test: setup ## tables and groups come and go at random under load; SECONDS=600, SEED= repeats one
	WAL2LAKE_TEST_SECONDS=$(SECONDS) WAL2LAKE_TEST_SEED=$(SEED) $(RUN) -m pytest -s -m slow tests/fault/test_life.py

failure-test: setup ## one table fails for long under load, the others go on; SECONDS=600
	WAL2LAKE_TEST_SECONDS=$(SECONDS) $(RUN) -m pytest -s -m slow tests/fault/test_long_failure.py

proof-million: setup ## a million rows copied, a hundred thousand changes followed
	$(RUN) -m pytest -m slow tests/acceptance/test_proofs.py -k million

proof-pgbench: setup ## pgbench for a minute while a run is on
	$(RUN) -m pytest -m slow tests/acceptance/test_proofs.py -k pgbench

lint: setup ## ruff, mypy and import-linter
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	.venv/bin/lint-imports

format: setup ## let ruff rewrite the sources
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

bench: ## measure everything that takes minutes, beside its peers
	@scripts/setup bench
	$(RUN) -m bench.run

bench-full: ## the whole loads, and an hour's soak: takes hours
	@scripts/setup bench
	$(RUN) -m bench.run --full

docs: setup ## write the reference pages from the code
	$(RUN) scripts/generate_docs.py

clean: ## remove what these targets made, the environment too
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
