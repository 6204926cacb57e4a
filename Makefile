# `make help` lists the targets. All of them create .venv first if it is missing or the lock has changed.

SHELL := /bin/bash
PYTHON ?= $(or $(shell command -v python3.11 || command -v python3.12 || command -v python3.13),python3)
# relative, because a target cannot have spaces, which the folder's path may have
VENV := .venv
STAMP := $(VENV)/.installed
P := demo
# CPU=1 installs torch and torchvision from here, without CUDA; an environment made so stays so
CPU ?= $(if $(wildcard $(VENV)/torch.txt),1)
UV_RANGE := "uv>=0.13,<0.14"
# UV=1 installs by uv, which takes less time; what is said to pip (PIP_NO_INDEX, pip.conf) uv does not hear
INSTALL := $(VENV)/bin/python -m pip install --disable-pip-version-check
ifeq ($(UV),1)
INSTALL := $(VENV)/bin/uv pip install --python $(VENV)/bin/python --compile-bytecode
endif
TORCH_CPU := https://download.pytorch.org/whl/cpu
CUDA := ^(cuda|nvidia|triton)
# oneDNN and torch then take the kernels of older CPUs
WITHOUT_AVX512 := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2
# of files, processes, pixels and words: whether they pass does not depend on a kernel
NO_KERNELS := $(addprefix --ignore=tests/,pipeline reporting steps streams \
	$(patsubst %,test_%.py,benchmarks_costs claims config files hostile_input layers lock makefile sources_doc style))

# dvc.yaml and the tests say `python`, which must be the environment's
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export DVC_NO_ANALYTICS := true
export MLFLOW_DISABLE_TELEMETRY := true

.DEFAULT_GOAL := help
.PHONY: git-checkout help install lock repro check status preset lint test test-fast test-avx2 test-slurm \
	test-exhaustive install-slurm faults fill ui device

help: ## print this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## create the environment in .venv from requirements.lock; without CUDA: make install CPU=1

install-slurm: $(VENV)/.slurm ## add what the executor slurm needs (docs/cluster.md)

repro: git-checkout $(STAMP) ## run the pipeline on params.yaml: all tables and figures (dvc repro)
	dvc repro

fill: git-checkout $(STAMP) ## compute all that params.yaml needs, here or with E=slurm on a cluster; then: make repro
	python -m pipeline.fill $(if $(E),--executor $(E))

check: $(STAMP) ## say whether this run agrees with the committed report of its preset, or another one: make check R=v1.0
	python -m pipeline.compare $(R)

status: git-checkout $(STAMP) ## say what `dvc repro` would run, data sets that changed or are missing included
	python -m pipeline.fingerprints
	dvc status

preset: git-checkout $(STAMP) ## copy presets/$(P).yaml to params.yaml, then run: make preset P=paper
	@[ -f "presets/$(P).yaml" ] || { echo "There is no preset '$(P)'; there are:" $(basename $(notdir $(wildcard presets/*))) \
	>&2; exit 1; }
	@for known in presets/*.yaml; do ! cmp -s $$known params.yaml || exit 0; done; \
	git show HEAD:./params.yaml 2>/dev/null | cmp -s - params.yaml || [ ! -e params.yaml ] || [ "$(FORCE)" = 1 ] || \
	{ echo "params.yaml has edits that are neither committed nor a preset; commit them, or give them up with:" \
	"make preset P=$(P) FORCE=1" >&2; exit 1; }
	cp "presets/$(P).yaml" params.yaml
	dvc repro

# in an unpacked archive DVC says "is not a git repository" and nothing else
git-checkout:
	@git rev-parse --git-dir >/dev/null 2>&1 || grep -qs 'no_scm = true' .dvc/config.local || { echo "This folder" \
	"is no git repository, which DVC needs: git init && git add -A && git commit -m start; or do without experiments" \
	"and diffs: make install && .venv/bin/dvc config --local core.no_scm true" >&2; exit 1; }

lint: $(STAMP) ## check format, style and types
	ruff format --check .
	ruff check .
	mypy par pipeline

test: $(STAMP) ## run all tests
	python -m pytest

test-fast: $(STAMP) ## run the tests that take no more than a few seconds each
	python -m pytest -m "not slow and not gpu"

test-avx2: $(STAMP) ## run the tests of test-fast that compute, as on a CPU without AVX-512
	$(WITHOUT_AVX512) python -m pytest -m "not slow and not gpu" $(NO_KERNELS)

test-slurm: $(VENV)/.slurm ## run the tests that start a SLURM of their own on this machine (apt-get install slurm-wlm munge)
	python -m pytest -m slurm -n 0

test-exhaustive: $(STAMP) ## run all tests and every method on every demo stream, then as on a CPU without AVX-512
	python -m pytest -m "not gpu and not slurm"
	$(WITHOUT_AVX512) python -m pytest -m "not gpu and not slurm"

faults: $(STAMP) ## break things in hundreds of ways; what came of it goes into docs/reliability.md
	python -m tests.faults --write docs/reliability.md

ui: $(STAMP) ## start the MLflow UI on http://127.0.0.1:5000, or on another port: make ui PORT=5001
	python -m pipeline.ui

device: $(STAMP) ## pack what `python -m benchmarks.device` needs on a machine with a GPU (CIFAR100 from D=data/sources)
	python -m benchmarks.pack --data-dir $(or $(D),data/sources) --out device

lock: $(STAMP) ## re-make requirements.lock for all systems (newer versions: UP=--upgrade), then resolve it for each
	python -m pip install --quiet $(UV_RANGE)
	uv pip compile --quiet --universal --python-version 3.11 --extra dev --no-annotate $(UP) \
		--custom-compile-command "make lock" --output-file requirements.lock pyproject.toml
	python -m tests.resolve_lock --write docs/install.md

$(STAMP): requirements.lock pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15) and \
	"This is Python %d.%d; name one of 3.11 to 3.14: make install PYTHON=..." % sys.version_info[:2])'
	"$(PYTHON)" -m venv --without-pip $(VENV) # with pip it would need Debian's extra package python3-venv
	"$(PYTHON)" -m pip --python $(VENV)/bin/python install --disable-pip-version-check pip \
		$(if $(filter 1,$(UV)),$(UV_RANGE))
ifeq ($(CPU),1)
	grep -E '^(torch|torchvision)==' requirements.lock > $(VENV)/torch.txt
	grep -vE '$(CUDA)' requirements.lock > $(VENV)/requirements.txt
	$(INSTALL) --no-deps --index-url $(TORCH_CPU) -r $(VENV)/torch.txt
	$(INSTALL) -r $(VENV)/requirements.txt
else
	$(INSTALL) -r requirements.lock
endif
	$(INSTALL) --no-deps -e .
	touch $(STAMP)

$(VENV)/.slurm: $(STAMP)
	$(INSTALL) --quiet -e '.[slurm]'
	touch $@
