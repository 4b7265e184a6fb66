# Rackproof's one task file. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help venv runtimes bench check lint unit test perf fuzz constraints docs clean
SHELL := /bin/bash
BIN := .venv/bin
# A target may be given the whole of a pytest selection: make unit PYTEST='-k judging'.
PYTEST ?=

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: .venv/.ready  ## Make .venv with pinned dependencies (Python 3.11 or newer)

.venv/.ready: pyproject.toml constraints.txt tools/make-venv
	@tools/make-venv .venv

runtimes: venv  ## Make the workloads' environments (PyTorch, MXNet) as bench.yml would
	@for name in torch mxnet; do \
	  $(BIN)/python workloads/make_runtime.py --runtime workloads/$$name --folder .rackproof/runtimes/$$name >/dev/null || exit 1; \
	done

bench: venv  ## Benchmark this machine: train, probe, judge, report
	@PATH="$(CURDIR)/$(BIN):$$PATH" ansible-playbook bench.yml -l localhost $(ARGS)

check: lint unit  ## Lint and fast tests: under 2 minutes

lint: venv  ## ruff, mypy --strict, ansible-lint (production), yamllint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/yamllint --strict .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline -q

unit: venv  ## Fast tests
	$(BIN)/pytest -q -m 'not (slow or browser or postgres or playbook or torch)' $(PYTEST)

test: venv lint  ## Everything that CI runs
	@tools/install-test-packages
	@$(MAKE) --no-print-directory runtimes
	$(BIN)/pytest $(PYTEST)

perf: venv  ## Benchmarks of Rackproof itself: parser speed, history, start-up
	$(BIN)/pytest tests/perf -o python_files='bench_*.py' --benchmark-disable-gc -s $(PYTEST)

fuzz: venv  ## A million fuzz inputs through every parser (about an hour)
	$(BIN)/python tests/fuzz/million.py --inputs $(or $(INPUTS),1000000)

docs: venv  ## Renew the generated parts of docs/
	$(BIN)/python tools/make-docs

constraints:  ## Renew constraints.txt with the newest versions that fit
	@tools/renew-constraints

clean:  ## Remove what make made; results and staged data stay
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .rackproof/runtimes
