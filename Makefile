# `make run` and `make test` do all the set-up themselves; they need Python 3.11 or newer and nothing else.
PYTHON ?= python3
BIN := .venv/bin
NEW_ENOUGH := $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo '$(PYTHON) is missing or older than 3.11; another one: make run PYTHON=python3.12' >&2; exit 1; }

.PHONY: run test test-slow test-gpu wheel lint format clean

run: .venv/app.stamp
	$(BIN)/python main.py

# Two processes, each with one torch thread; a file's tests stay together and share their runs, in the order of
# tests/conftest.py.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder -rfEs

test: .venv/dev.stamp
	$(PYTEST)

test-slow: .venv/dev.stamp
	$(PYTEST) -m slow

# On a machine with an NVIDIA GPU, in three minutes; the figures that it prints are in docs/results.md.
test-gpu: .venv/dev.stamp
	$(BIN)/python -m pytest -m gpu -s tests/test_gpu.py

wheel: .venv/dev.stamp
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One pip command for torch and torchvision together: an unmatched pair does not import.
.venv/app.stamp: requirements.txt
	@test -x $(BIN)/python || $(NEW_ENOUGH)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

.venv/dev.stamp: requirements.txt requirements-extras.txt requirements-dev.txt
	@test -x $(BIN)/python || $(NEW_ENOUGH)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch .venv/app.stamp $@

clean:
	rm -rf .venv dist .pytest_cache .ruff_cache .mypy_cache
