# `make` lists the targets: the text after `##` says what each does. Every target makes the environment that it needs.

VENV ?= .venv
BIN := $(VENV)/bin
RUN_EXTRAS := torch,cli,plot
TEST_EXTRAS := $(RUN_EXTRAS),test
DEV_EXTRAS := $(TEST_EXTRAS),lint,docs,bench
# With several threads per process the array libraries compete for cores, which slows the tests down.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
# Tests start many processes: each would compile the package and the tests again.
export PYTHONDONTWRITEBYTECODE :=

# The commit and benchmarks that bench-compare takes, and the slowdown that it allows.
BASE ?= HEAD~1
BENCH ?= steps.Methods.time_step
FACTOR ?= 1.3

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-quick test-jax test-jax-all test-botorch
.PHONY: test-autogluon test-board test-oldest test-wheel board rehearse lint docs
.PHONY: bench bench-compare bench-html

help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "make %-15s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(BIN)/.run ## train the methods side by side on NumPy and torch
	$(BIN)/agp compare --backend numpy torch

test: $(BIN)/.test ## run the tests
	$(ONE_THREAD) $(BIN)/python -m pytest -n auto --dist worksteal -m "not long"

test-all: $(BIN)/.test ## run the tests and the experiments that are marked long
	$(ONE_THREAD) $(BIN)/python -m pytest -n auto --dist worksteal

test-quick: $(BIN)/.test ## run the tests that are not marked slow
	$(ONE_THREAD) $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

# An environment with JAX, BoTorch and the scikit-learn ecosystem.
OTHERS := $(VENV)-others
$(OTHERS)/bin/.test: pyproject.toml
	$(MAKE) VENV=$(OTHERS) TEST_EXTRAS=botorch,cli,ecosystem,jax,test $@

# Reference values do not depend on XLA's optimisations and fused loops, which take two thirds of the time. If XLA does
# not know the flag, delete it. Processes share compiled code.
COMPILE_FAST := JAX_DISABLE_MOST_OPTIMIZATIONS=1 XLA_FLAGS=--xla_cpu_use_fusion_emitters=false \
  JAX_COMPILATION_CACHE_DIR=$(abspath $(OTHERS))/compiled JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
  JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1
test-jax: $(OTHERS)/bin/.test ## test JAX, in a second environment
	$(ONE_THREAD) $(OTHERS)/bin/python -m pytest -n auto -m "not long" tests/backend/test_jax.py
	$(ONE_THREAD) $(COMPILE_FAST) $(OTHERS)/bin/python -m pytest -n auto -m "not slow" -k "[jax" tests/reference

test-jax-all: $(OTHERS)/bin/.test ## run all cases of all tests on JAX
	$(ONE_THREAD) $(OTHERS)/bin/python -m pytest -n auto -k jax tests

test-botorch: $(OTHERS)/bin/.test ## test BoTorch, GPyTorch, MAPIE, SHAP and Optuna, in the environment of test-jax
	$(ONE_THREAD) $(OTHERS)/bin/python -m pytest -n auto -k "botorch or gpytorch or ecosystem or bayesian" \
	  tests/interop tests/properties/test_conformance.py tests/project/test_docs.py tests/project/test_papers.py \
	  tests/project/test_printed.py

# An environment of its own, because AutoGluon requires older versions of pandas and pyarrow.
AUTOGLUON := $(VENV)-autogluon
$(AUTOGLUON)/bin/.test: pyproject.toml
	$(MAKE) VENV=$(AUTOGLUON) TEST_EXTRAS=autogluon,test $@

test-autogluon: $(AUTOGLUON)/bin/.test ## test AutoGluon, in an environment of its own
	$(ONE_THREAD) $(AUTOGLUON)/bin/python -m pytest -n auto tests/interop/test_autogluon.py

# Reference values, gradients, files and estimators, on NumPy: the stand-in for CuPy needs newer versions.
OLDEST := $(VENV)-oldest
OLDEST_TESTS := tests/reference tests/bounds/test_bounds_gradients.py tests/files \
  tests/estimators/test_estimators.py tests/models/test_prediction.py
test-oldest: $(OLDEST)/bin/.oldest ## test the core with the oldest supported dependencies
	$(ONE_THREAD) $(OLDEST)/bin/python -m pytest -n auto -q -m "not long" -k "not strict and not cupy" $(OLDEST_TESTS)

$(OLDEST)/bin/.oldest: pyproject.toml .ci/oldest.py
	test -x $(OLDEST)/bin/python || python3 -m venv $(OLDEST)
	python3 .ci/oldest.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --disable-pip-version-check -c $(OLDEST)/constraints.txt -e ".[sklearn]" \
	  pandas pyarrow array-api-strict hypothesis pytest pytest-xdist
	touch $@

# The board: tables of other packages, and the libraries with which agp is compared.
BOARD := $(VENV)-board
BOARD_OUT ?= build/board
$(BOARD)/bin/.test: pyproject.toml
	$(MAKE) VENV=$(BOARD) TEST_EXTRAS=board,test $@

test-board: $(BOARD)/bin/.test ## test the board, and run it in small
	$(ONE_THREAD) $(BOARD)/bin/python -m pytest -n auto tests/project/test_board.py
	$(BOARD)/bin/python asv_benchmarks/board.py run --small --out build/board-small

board: $(BOARD)/bin/.test ## compare the defaults with other libraries on real tables (hours) and write docs/board.md
	$(BOARD)/bin/python asv_benchmarks/board.py run --out $(BOARD_OUT) || test $$? = 1  # some models fail on some tables
	$(BOARD)/bin/python asv_benchmarks/board.py page --out $(BOARD_OUT)

test-wheel: ## build the wheel and the source archive, inspect and install them
	test -x $(VENV)-wheel/bin/python || python3 -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip install --disable-pip-version-check "build>=1.2"
	$(VENV)-wheel/bin/python .ci/check_wheel.py build/wheel

# The packages of a fresh GPU machine, without CuPy.
rehearse: ## run both calls of the GPU report in small on the CPU, from wheels in an empty folder
	test -x $(VENV)-rehearse/bin/python || python3 -m venv $(VENV)-rehearse
	$(VENV)-rehearse/bin/python -m pip install --disable-pip-version-check -c constraints.txt \
	  numpy scipy torch jax scikit-learn pandas pytest pytest-xdist gpytorch
	$(ONE_THREAD) $(VENV)-rehearse/bin/python asv_benchmarks/accelerator.py --rehearse

lint: $(BIN)/.dev ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest -q -k "unknown_types or mistakes" tests/project/test_downstream.py

docs: $(BIN)/.dev ## build the documentation in docs/_build
	$(ONE_THREAD) $(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build
	$(BIN)/python docs/_ext/check_built.py docs/_build

bench: $(BIN)/.dev ## run every benchmark once, quickly; AGP_BENCH=all runs the full grid (hours)
	cd asv_benchmarks && ../$(BIN)/asv machine --yes && $(ONE_THREAD) ../$(BIN)/asv run --quick --python=same --show-stderr

bench-compare: $(BIN)/.dev ## compare the benchmarks BENCH of BASE and HEAD; fails if HEAD is slower
	cd asv_benchmarks && ../$(BIN)/asv machine --yes && $(ONE_THREAD) ../$(BIN)/asv continuous --show-stderr \
	  --interleave-rounds --factor $(FACTOR) --bench "$(BENCH)" $(BASE) HEAD

bench-html: $(BIN)/.dev ## build asv's pages of the stored results
	cd asv_benchmarks && ../$(BIN)/asv publish && echo "asv_benchmarks/.asv/html; to look at it: asv preview, there"

$(BIN)/.run: EXTRAS := $(RUN_EXTRAS)
$(BIN)/.test: EXTRAS := $(TEST_EXTRAS)
$(BIN)/.dev: EXTRAS := $(DEV_EXTRAS)
$(BIN)/.run $(BIN)/.test $(BIN)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	touch $@
