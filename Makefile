# make run    set up and run the comparison on every backend that the extras below install
# make test   set up and run the whole test suite
# make test-quick   without the slow tests: those that train, start processes or repeat others on another library
# make test-jax   reference values and processes on JAX, in an environment of its own (some minutes)
# make test-botorch   models in BoTorch, estimators in MAPIE, SHAP and Optuna, in the same environment
# make test-oldest   the core on the oldest supported versions of what it needs, in an environment of its own
# make test-wheel    build wheel and sdist, look inside, install the wheel elsewhere and use it there
# make rehearse   the accelerator report in small on the CPU, from wheels in an empty folder (some minutes)
# make docs   build the documentation;  make lint   style and types
# make bench  one quick pass over the benchmarks, every axis in short; AGP_BENCH=all for the whole product (hours)
# make bench-html   asv's pages of the results that there are, a graph over commits for each benchmark
# make bench-compare   the benchmarks BENCH of BASE and of HEAD, in environments of their own: fails where HEAD is slower

VENV ?= .venv
BIN := $(VENV)/bin
RUN_EXTRAS := torch,cli,plot,data
TEST_EXTRAS := $(RUN_EXTRAS),test
DEV_EXTRAS := $(TEST_EXTRAS),lint,docs,bench
# Two threads of two array libraries fight for the cores and tests need no speed.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

# What bench-compare compares, and by how much a benchmark may be slower.
BASE ?= HEAD~1
BENCH ?= steps.Methods.time_step
FACTOR ?= 1.3

.PHONY: run test test-quick test-jax test-botorch test-oldest test-wheel rehearse lint docs bench bench-compare bench-html
run: $(BIN)/.run
	$(BIN)/agp compare

test: $(BIN)/.test
	$(ONE_THREAD) $(BIN)/python -m pytest -n auto --dist worksteal

test-quick: $(BIN)/.test
	$(ONE_THREAD) $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

# Libraries that not everybody has.
OTHERS := $(VENV)-others
$(OTHERS)/bin/.test: pyproject.toml
	$(MAKE) VENV=$(OTHERS) TEST_EXTRAS=botorch,cli,ecosystem,jax,test $@

test-jax: $(OTHERS)/bin/.test
	$(ONE_THREAD) $(OTHERS)/bin/python -m pytest -n auto -k jax tests/backend/test_jax.py tests/reference tests/processes

test-botorch: $(OTHERS)/bin/.test
	$(ONE_THREAD) $(OTHERS)/bin/python -m pytest -n auto -k "botorch or ecosystem or bayesian" \
	  tests/interop tests/properties/test_conformance.py tests/project/test_docs.py tests/project/test_printed.py

# Without torch, and without the stand-in for CuPy, which knows the newest versions: reference values on NumPy, gradients
# of the bounds, files, estimators.
OLDEST := $(VENV)-oldest
OLDEST_TESTS := tests/reference tests/bounds/test_bounds_gradients.py tests/files \
  tests/estimators/test_estimators.py tests/models/test_prediction.py
test-oldest: $(OLDEST)/bin/.oldest
	$(ONE_THREAD) $(OLDEST)/bin/python -m pytest -n auto -q -k "not strict and not cupy" $(OLDEST_TESTS)

$(OLDEST)/bin/.oldest: pyproject.toml .ci/oldest.py
	test -x $(OLDEST)/bin/python || python3 -m venv $(OLDEST)
	python3 .ci/oldest.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --disable-pip-version-check -c $(OLDEST)/constraints.txt -e ".[sklearn]" \
	  pandas pyarrow array-api-strict hypothesis pytest pytest-xdist
	touch $@

test-wheel:
	test -x $(VENV)-wheel/bin/python || python3 -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip install --disable-pip-version-check "build>=1.2"
	$(VENV)-wheel/bin/python .ci/check_wheel.py build/wheel

# What a bare machine with a GPU has, but for the GPU and CuPy.
rehearse:
	test -x $(VENV)-rehearse/bin/python || python3 -m venv $(VENV)-rehearse
	$(VENV)-rehearse/bin/python -m pip install --disable-pip-version-check -c constraints.txt numpy scipy torch jax pytest
	$(ONE_THREAD) $(VENV)-rehearse/bin/python asv_benchmarks/accelerator.py --rehearse

lint: $(BIN)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest -q -k "unknown_types or mistakes" tests/project/test_downstream.py

docs: $(BIN)/.dev
	$(ONE_THREAD) $(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build
	$(BIN)/python docs/_ext/check_built.py docs/_build

bench: $(BIN)/.dev
	cd asv_benchmarks && ../$(BIN)/asv machine --yes && $(ONE_THREAD) ../$(BIN)/asv run --quick --python=same --show-stderr

bench-compare: $(BIN)/.dev
	cd asv_benchmarks && ../$(BIN)/asv machine --yes && $(ONE_THREAD) ../$(BIN)/asv continuous --show-stderr \
	  --interleave-rounds --factor $(FACTOR) --bench "$(BENCH)" $(BASE) HEAD

bench-html: $(BIN)/.dev
	cd asv_benchmarks && ../$(BIN)/asv publish && echo "asv_benchmarks/.asv/html; to look at it: asv preview, there"

$(BIN)/.run: EXTRAS := $(RUN_EXTRAS)
$(BIN)/.test: EXTRAS := $(TEST_EXTRAS)
$(BIN)/.dev: EXTRAS := $(DEV_EXTRAS)
$(BIN)/.run $(BIN)/.test $(BIN)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	touch $@
