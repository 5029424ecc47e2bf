PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# More arguments for pytest or the benchmarks: make test ARGS="tests/test_chain.py -x"
ARGS ?=

.PHONY: demo test slow lint format bench fuzz docs clean

demo: $(STAMP)
	$(BIN)/girsanov demo

# OpenBLAS divides even the product of two tiny matrices among threads, which then wait for each other where the cores
# are busy: a matrix exponential in SciPy took 8 ms instead of 16 µs. Two test processes use both cores anyway.
test slow fuzz: export OPENBLAS_NUM_THREADS = 1

# Most of the tests' time is compilation, of programs that run for milliseconds: without LLVM's optimisation it is half
# as long. The slow tests run with the optimisation that users get.
test: $(STAMP)
	XLA_FLAGS="$(XLA_FLAGS) --xla_backend_optimization_level=0" $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" $(ARGS)

slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m benchmarks.run $(ARGS)

# Random models against exact answers: make fuzz ARGS="--cases 2000 --seed 7"
fuzz: $(STAMP)
	$(BIN)/python -m fuzz $(ARGS)

# The documentation site in out/site. Scripts and notebooks that have not changed are not run again.
docs: $(STAMP)
	$(BIN)/python docs/site/build.py --keep $(ARGS)

clean:
	rm -rf $(VENV) build dist out .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks fuzz -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# The environment is made once, and brought up to date when pyproject.toml changes.
$(STAMP): pyproject.toml
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@
