# make setup   the virtual environment, with everything below
# make demo    two engines, one gateway: drain, SIGKILL, warm restart, every retrieved byte compared
# make test    all tests, but for those that need a vLLM
# make test-engine, make demo-vllm   with a real vLLM, in an environment of its own
# make bench   every figure that is promised, measured here; BENCH_ARGS="--quick --only ping" for less
# make fuzz    the readers of wire frames and pool files under a coverage-guided fuzzer; FUZZ_ARGS="--seconds 600"
# make bench-vllm   what a real vLLM gains and loses by kvgate
# make race    kvgate and LMCache's multi-process server in the same laps, on this CPU; RACE_ARGS="--quick" for less
# make chaos   gateway and engines killed, stopped, cut off, drained and switched at random; CHAOS_ARGS="--seconds 600 --seed 7"
# make soak    an hour of use, in which nothing may grow; SOAK_ARGS="--seconds 90" for less, which finds large leaks only
# make nightly all of chaos, fuzz and the long versions of tests that have one, then the soak: about two hours
# make check   style, types, layering, generated files
# make fix     what check can put right by itself
# make clean   all that the others leave behind

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=
BENCH_ARGS ?=
RACE_ARGS ?=
FUZZ_ARGS ?=
CHAOS_ARGS ?=
SOAK_ARGS ?=

.PHONY: setup demo demo-vllm test test-engine bench bench-vllm race fuzz chaos soak nightly check fix clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

# The C extension is built where there is a compiler; without one the build goes on and copies run in pure Python.
$(STAMP): pyproject.toml constraints.txt $(wildcard gateway/device/*.c)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[gateway,torch,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/python -m examples.demo

demo-vllm:
	scripts/setup-vllm
	.venv-vllm/bin/python -m examples.vllm

test: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# Starting a vLLM takes longer than a test may.
test-engine:
	scripts/setup-vllm
	.venv-vllm/bin/python -m pytest --timeout=600 tests/engine $(PYTEST_ARGS)

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

bench-vllm:
	scripts/setup-vllm
	.venv-vllm/bin/python -m benchmarks --vllm $(BENCH_ARGS)

race: $(STAMP)
	scripts/setup-peer
	$(BIN)/python -m benchmarks.peer $(RACE_ARGS)

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

soak: $(STAMP)
	$(BIN)/python -m tests.soak $(SOAK_ARGS)

nightly: $(STAMP)
	KVGATE_LONG_TESTS=1 $(BIN)/python -m pytest --timeout=1200 tests/model tests/process/test_handle_mode.py
	$(MAKE) --no-print-directory chaos CHAOS_ARGS="--seconds 600"
	$(MAKE) --no-print-directory fuzz FUZZ_ARGS="--seconds 600"
	$(MAKE) --no-print-directory soak

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases examples
	$(BIN)/mypy --explicit-package-bases --follow-imports=silent benchmarks
	$(BIN)/python -m pytest -q -p no:randomly tests/unit/test_layering.py
	$(BIN)/python -m gateway.metrics.document | diff -u docs/metrics.md -
	$(BIN)/python -m gateway.admin.openapi | diff -u docs/openapi.json -
	$(BIN)/python -m dashboards --check

fix: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/python -m gateway.metrics.document > docs/metrics.md
	$(BIN)/python -m gateway.admin.openapi > docs/openapi.json
	$(BIN)/python -m dashboards

clean:
	rm -rf $(VENV) .venv-vllm .venv-peer build dist *.egg-info gateway/device/*.so benchmarks/results .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
