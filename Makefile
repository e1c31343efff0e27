# wal2lake: `make demo` and `make test` do all set-up themselves.

RUN := .venv/bin/python

.PHONY: help setup demo test test-slow lint format bench docs clean

help: ## show these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## make .venv, find or install Java, fetch Spark's jars; at once when it is all there
	@scripts/setup

demo: setup ## a live shop database and its mirror, for a minute
	@$(RUN) -m wal2lake demo --seconds 60

test: setup ## every test that takes seconds
	$(RUN) -m pytest -m "not slow"

test-slow: setup ## the proofs that take minutes: kills under load, a million rows, pgbench
	$(RUN) -m pytest -m slow

lint: setup ## ruff and mypy
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy

format: setup ## let ruff rewrite the sources
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

bench: setup ## measure capture, copy and freshness
	$(RUN) -m bench.run

docs: setup ## write the reference pages from the code
	$(RUN) scripts/generate_docs.py

clean: ## remove what these targets made, the environment too
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
