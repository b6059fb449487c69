# Two commands matter: `make demo` and `make test`. Each does all its own set-up in .venv.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-vllm setup-vllm soak lint lint-style lint-types lint-arrows format

BIN := .venv/bin
SOURCES := patched_engine exporters detectors dashboards runbooks lab tests $(wildcard benchmarks)
TYPED := patched_engine exporters detectors dashboards runbooks lab $(wildcard benchmarks)

help: ## this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make or refresh .venv (the other targets do it themselves)
	@bash requirements/setup.sh

demo: setup ## the main job: two faults in a real lockstep engine, each diagnosed, and a healthy run
	@$(BIN)/stallscope lab demo

# The busier the machine, the more completions the stock client loses by itself: what runs it has the
# machine to itself. The others mostly wait, and share it.
ALONE := tests/lab tests/runbooks/test_client_faults.py tests/patched_engine/patches \
  tests/patched_engine/sharding/test_interop.py tests/patched_engine/telemetry/test_engine_spans.py \
  tests/patched_engine/test_lmcache_hooks.py tests/exporters/test_contract.py
test: setup ## the tests, under 15 minutes
	@failed=0; \
	$(BIN)/python -m pytest -q --durations=10 -n 2 --dist loadfile $(ALONE:%=--ignore=%) || failed=1; \
	$(BIN)/python -m pytest -q --durations=10 $(ALONE) || failed=1; \
	exit $$failed

test-vllm: setup-vllm ## real vLLM on CPU with real LMCache, under 10 minutes
	@STALLSCOPE_NEEDS_VLLM=1 .venv-vllm/bin/python -m pytest -q -p no:cacheprovider --durations=10 -m "vllm and not soak" tests/vllm

setup-vllm: ## make or refresh .venv-vllm (test-vllm does it itself)
	@bash requirements/setup-vllm.sh

soak: setup ## the long runs whose result files are committed
	@$(BIN)/python -m pip install --quiet --no-deps --only-binary :all: -r requirements/soak.txt
	@$(BIN)/python -m pytest -q -m soak

lint: lint-style lint-types lint-arrows ## ruff, mypy and the arrows between rooms

lint-style: setup
	@echo "== ruff check" && $(BIN)/ruff check $(SOURCES)
	@echo "== ruff format" && $(BIN)/ruff format --check $(SOURCES)

lint-types: setup
	@echo "== mypy" && $(BIN)/mypy $(TYPED)

lint-arrows: setup
	@echo "== import-linter" && $(BIN)/lint-imports

format: setup ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix $(SOURCES); $(BIN)/ruff format $(SOURCES)

docs-metrics: setup ; @$(BIN)/python -m exporters.catalog_docs > docs/metrics.md ## docs/metrics.md from the catalog

bench-%: setup ## one measurement beside its rivals: bench-page, bench-resp, bench-kernels, bench-trace, bench-exporter (QUICK=1: under a minute)
	@$(BIN)/python -m benchmarks.$(subst -,_,$*)
