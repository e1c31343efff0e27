# wal2lake: `make demo` and `make test` do all set-up themselves.

RUN := .venv/bin/python
ROUNDS ?= 20
SECONDS ?= 600
SEEDS ?= 5
SEED ?=
WORKLOAD ?=
STEPS ?=
FAULTS ?=
LAKE_SECONDS ?=
MAJORS ?= 14 16
# A file is run by one worker; the order is that of the folders, where those with long tests come first.
BY_FILE := --dist loadfile --no-loadscope-reorder
ON_EVERY_MAJOR := $(addprefix tests/,integration/test_binary_against_text.py \
    integration/test_decode_against_postgres.py integration/test_exactness.py integration/test_following.py \
    integration/test_streamed_transactions.py integration/test_slot.py integration/test_output_plugins.py \
    fault/test_schema_changes.py)

.PHONY: help setup demo unit test test-slow proofs-short test-majors test-plugins kill-test crossing-test life-test simulate failure-test ddl-test hostile-test modes-test proof-million proof-pgbench lint format bench bench-full bench-compare docs clean

help: ## show these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## make .venv, find or install Java, download Spark's jars; does nothing if all exist
	@scripts/setup

demo: setup ## a shop database under load and its mirror, for a minute
	@$(RUN) -m wal2lake demo --seconds 60

unit: setup ## tests that need no server, about a minute
	$(RUN) -m pytest -q -n 2 tests/unit

test: setup ## all tests that are not slow, about ten minutes
	$(RUN) -m pytest -n 3 $(BY_FILE) -m "not slow"

test-slow: setup ## all slow tests in their long form: takes hours
	$(RUN) -m pytest -m slow

proofs-short: setup ## slow tests in a short form, also on other PostgreSQL majors: at most 20 minutes
	WAL2LAKE_TEST_PROOFS=short $(RUN) -m pytest -n 3 $(BY_FILE) -m "slow and not alone"
	WAL2LAKE_TEST_PROOFS=short $(RUN) -m pytest -m alone
	@$(MAKE) --no-print-directory test-majors

test-majors: setup ## types, order and DDL on other PostgreSQL majors; MAJORS="14 16"
	@for major in $(MAJORS); do \
	    echo "PostgreSQL $$major"; \
	    WAL2LAKE_TEST_PG_BIN=$$($(RUN) scripts/postgres_binaries.py $$major) \
	        $(RUN) -m pytest -q -n 2 $(BY_FILE) -m "not slow" $(ON_EVERY_MAJOR) || exit 1; \
	done

DEBIAN := /usr/lib/postgresql/15
PLUGIN_TESTS := $(addprefix tests/,contract/test_change_source.py integration/test_output_plugins.py \
    integration/test_check_plugins.py fault/test_plugin_mirrors.py)
test-plugins: setup ## wal2json and test_decoding on Debian's PostgreSQL 15; installs it where apt-get can
	@test -e $(DEBIAN)/lib/wal2json.so -a -e $(DEBIAN)/bin/postgres \
	    || apt-get install -y --no-install-recommends postgresql-15 postgresql-15-wal2json \
	    || { echo "Install them, then run this again: apt-get install postgresql-15 postgresql-15-wal2json" >&2; exit 1; }
	WAL2LAKE_TEST_PG_BIN=$(DEBIAN)/bin $(RUN) -m pytest -n 2 $(BY_FILE) -m "not slow" $(PLUGIN_TESTS)

kill-test: setup ## kill -9 at random moments under load; ROUNDS=20, SEED= repeats one
	WAL2LAKE_TEST_ROUNDS=$(ROUNDS) WAL2LAKE_TEST_SEED=$(SEED) $(RUN) -m pytest -s -m slow tests/fault/test_kills.py

crossing-test: ROUNDS = 50
crossing-test: setup ## from triggers to the WAL under load, killed at each step; ROUNDS=50, SEED= repeats one
	WAL2LAKE_TEST_ROUNDS=$(ROUNDS) WAL2LAKE_TEST_SEED=$(SEED) $(RUN) -m pytest -s -m slow tests/fault/test_random_crossings.py

ddl-test: ROUNDS = 500
ddl-test: setup ## random DDL and DML against the source; ROUNDS=500, SEED= repeats one
	WAL2LAKE_TEST_ROUNDS=$(ROUNDS) WAL2LAKE_TEST_SEED=$(SEED) $(RUN) -m pytest -s -m slow tests/fault/test_random_ddl.py tests/fault/test_schema_changes.py

hostile-test: setup ## awkward keys, partitions and tables; SEEDS=5, SEED= begins with one
	WAL2LAKE_TEST_SEEDS=$(SEEDS) WAL2LAKE_TEST_SEED=$(SEED) $(RUN) -m pytest -s -m slow tests/acceptance/test_hostile_schemas.py

modes-test: CAPTURE = poll
modes-test: setup ## what the modes must have in common, with CAPTURE=poll or trigger
	WAL2LAKE_TEST_CAPTURE=$(CAPTURE) $(RUN) -m pytest tests/integration/test_exactness.py tests/fault/test_types.py \
	    tests/fault/test_identity.py tests/fault/test_schema_changes.py tests/fault/test_pooler.py
	WAL2LAKE_TEST_CAPTURE=$(CAPTURE) WAL2LAKE_TEST_PROOFS=short $(RUN) -m pytest -m slow tests/fault/test_kills.py \
	    tests/fault/test_random_ddl.py tests/acceptance/test_hostile_schemas.py

life-test: setup ## tables and groups are added and dropped at random under load; SECONDS=600, SEED= repeats one
	WAL2LAKE_TEST_SECONDS=$(SECONDS) WAL2LAKE_TEST_SEED=$(SEED) $(RUN) -m pytest -s -m slow tests/fault/test_life.py

simulate: SEEDS = 10000
simulate: setup ## the whole mirror in memory, with faults; SEEDS=10000, SEED= begins with one, SEEDS=1 repeats it
	@cd tests && PYTHONWARNINGS=ignore ../$(RUN) -m simulation.campaign --seeds $(SEEDS) $(if $(SEED),--seed $(SEED)) \
	    $(if $(WORKLOAD),--workload $(WORKLOAD)) $(if $(CAPTURE),--capture $(CAPTURE)) $(if $(LAKE_SECONDS),--lake-seconds $(LAKE_SECONDS)) \
	    $(if $(STEPS),--steps $(STEPS)) $(if $(FAULTS),--faults '$(FAULTS)')

failure-test: setup ## one table fails for long under load; SECONDS=600
	WAL2LAKE_TEST_SECONDS=$(SECONDS) $(RUN) -m pytest -s -m slow tests/fault/test_long_failure.py

proof-million: setup ## a million rows copied, a hundred thousand changes followed
	$(RUN) -m pytest -m slow tests/acceptance/test_proofs.py -k million

proof-pgbench: setup ## pgbench for a minute during a run
	$(RUN) -m pytest -m slow tests/acceptance/test_proofs.py -k pgbench

lint: setup ## ruff, mypy and import-linter
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	.venv/bin/lint-imports

format: setup ## let ruff rewrite the sources
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

bench: ## all benchmarks that take minutes, compared with peers
	@scripts/setup bench
	$(RUN) -m bench.run

bench-full: ## full loads, and a soak of an hour: takes hours
	@scripts/setup bench
	$(RUN) -m bench.run --full

ROUNDS_OF_BENCH ?= 3
SCALE ?= 0.2
HEAD ?= HEAD
bench-compare: setup ## two revisions measured in turns; BASE=rev, HEAD=rev, ROUNDS_OF_BENCH=3, SCALE=0.2
	$(RUN) -m bench.compare $(BASE) --head $(HEAD) --rounds $(ROUNDS_OF_BENCH) --scale $(SCALE)

docs: setup ## generate the reference pages
	$(RUN) scripts/generate_docs.py

clean: ## remove everything that these targets made
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
