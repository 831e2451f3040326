# SPDX-License-Identifier: Apache-2.0
# Every target sets up what it needs: .venv from the pinned requirements, the
# op library from custom_ops/. Nothing is redone unless its sources changed.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The first Python that TensorFlow has wheels for.
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11 \
  python3.10,$(shell $(p) -c 'import sys, venv, ensurepip; \
  (3, 10) <= sys.version_info[:2] <= (3, 13) and print("$(p)")' 2>/dev/null)))

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
LIBRARY := comet_tf/ops/_comet_ops.so
NATIVE_SOURCES := $(shell find custom_ops -type f \( -name '*.cc' -o \
  -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \
  -o -name '*.bzl' \))
JOBS ?= $(shell nproc)

export TF_CPP_MIN_LOG_LEVEL ?= 2
ARGS ?=

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(INSTALLED)  ## Make .venv from the pinned requirements

# --no-compile: Python compiles a module when it is first imported.
$(INSTALLED): requirements.txt constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no Python 3.10 to 3.13 with venv" \
	  "found. Install one (Debian, Ubuntu: apt-get install python3-venv)," \
	  "or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-compile -r requirements.txt
	@touch $@

build: $(LIBRARY)  ## Build the op library in place

$(LIBRARY): $(INSTALLED) $(NATIVE_SOURCES) setup.py tools/native_build.py
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

train: build  ## Train the example model plain and wrapped (ARGS="--model=...")
	$(BIN)/python examples/train.py $(ARGS)

# Slow tests lie side by side, so idle workers steal from the others.
test: build  ## Run the tests
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" $(ARGS)

test-all: build  ## Run all tests, the slow ones too
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-cpp:  ## Run the codec's own C++ tests
	tests/cpp/run.sh

test-cuda-emulator:  ## Run the CUDA kernels on the CPU, under sanitizers
	tests/cuda_emulator/run.sh

test-package: build  ## Build the wheel, install it elsewhere, use it there
	$(BIN)/python -m pytest tests/packaging

exhaustive:  ## Check the bound on all 2^32 float32 patterns (minutes)
	tests/cpp/run.sh exhaustive

fuzz:  ## Fuzz the decoder for one minute
	tests/cpp/run.sh fuzz

bazel:  ## Build the op library with Bazel and check that it loads
bazel: $(INSTALLED)
	tools/bazel_build.sh

lint: $(INSTALLED)  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	find custom_ops tests \( -name '*.cc' -o -name '*.h' -o -name '*.cu' \
	  -o -name '*.cuh' \) -print0 | xargs -0r $(BIN)/clang-format \
	  --dry-run --Werror

format: $(INSTALLED)  ## Rewrite the sources in the project's style
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .
	find custom_ops tests \( -name '*.cc' -o -name '*.h' -o -name '*.cu' \
	  -o -name '*.cuh' \) -print0 | xargs -0r $(BIN)/clang-format -i

clean:  ## Remove what was built (not .venv)
	rm -rf build dist *.egg-info $(LIBRARY) comet_tf/ops/_build_info.json

.PHONY: help setup build train test test-all test-cpp test-cuda-emulator \
  test-package exhaustive fuzz bazel lint format clean
