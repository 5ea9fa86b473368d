# Each target sets up what it needs: on a fresh clone, `make demo` or `make test` is one command.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PEERS := .venv-peers/.ready
MINIMUM_TESTS := tests/cli tests/data/test_columnar.py tests/experiments/test_trees.py \
	tests/oracle tests/report/test_page.py tests/test_estimator.py tests/test_readme.py \
	tests/training/test_trainer.py
DOCS_TESTS := tests/docs tests/test_readme.py tests/test_reference.py tests/test_examples.py
PLATFORM := manylinux_2_17_x86_64
GPU_TESTS := tests/contract tests/kernels tests/models/test_tabm.py tests/training/test_gpu.py \
	tests/text/test_cached.py
# Tests write, and sync, some ten thousand files: in memory where that has 4 GB free, or else on disk.
IN_MEMORY := $(shell df -k /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print "/dev/shm"}')

# Tests start hundreds of processes, each of which would compile the package's modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test gpu-test minimum dist docs docs-test kernels lint format bench clean

demo: $(READY)
	$(BIN)/rankgrad demo

# Kernels are compiled on one core while the linters use the other.
test: $(READY)
	$(MAKE) --no-print-directory --jobs 2 lint kernels
	OMP_NUM_THREADS=1 $(if $(IN_MEMORY),PYTEST_DEBUG_TEMPROOT=$(IN_MEMORY)) \
		$(BIN)/python -m pytest -n 2 --dist worksteal

# With the packages of PYTHON, which must have PyTorch with CUDA, Triton and what the tests need.
gpu-test:
	RANKGRAD_TEST_DEVICE=cuda $(PYTHON) tests/sharded.py $(GPU_TESTS) $(PYTEST_ARGS)

# The oldest packages that pyproject.toml declares, those of extras too, in an environment of their
# own. Newer packages that these depend on warn of what they will drop: no errors here.
minimum:
	$(PYTHON) -m venv --clear .venv-minimum
	.venv-minimum/bin/pip install --quiet packaging
	.venv-minimum/bin/python tests/minimum.py > .venv-minimum/constraints.txt
	.venv-minimum/bin/pip install --quiet --constraint .venv-minimum/constraints.txt --editable ".[test]"
	.venv-minimum/bin/rankgrad --help > /dev/null
	OMP_NUM_THREADS=1 .venv-minimum/bin/python -m pytest -W default $(MINIMUM_TESTS)

# The sdist; a wheel of it, which compiles kernels when they are first called; a wheel with compiled
# kernels for this version of Python; and tests of what that installs, in an environment of its own.
dist: $(READY)
	rm -rf build dist
	$(BIN)/pip install --quiet build twine
	$(BIN)/python -m build
	OMP_NUM_THREADS=1 $(BIN)/python tools/precompile.py --all
	$(BIN)/python -m build --wheel --config-setting="--build-option=--plat-name=$(PLATFORM) \
		--python-tag=$$($(BIN)/python -c 'import sys; print("cp%d%d" % sys.version_info[:2])')"
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv --clear .venv-dist
	.venv-dist/bin/pip install --quiet --constraint constraints.txt "$$(ls dist/*$(PLATFORM).whl)[test]"
	.venv-dist/bin/python -c "import rankgrad; assert 'site-packages' in rankgrad.__file__"
	.venv-dist/bin/python -c "from rankgrad._precompiled import *; assert archive_path(host_level()).exists()"
	OMP_NUM_THREADS=1 .venv-dist/bin/python -m pytest -o pythonpath=tests $(MINIMUM_TESTS) tests/test_precompiled.py

# The documentation, in site/.
docs: $(READY)
	$(BIN)/python tools/docs

# What `make test` also checks: code of the pages, commands, links, public names, a phone's width.
docs-test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(DOCS_TESTS)

# Compiled code in src/rankgrad/precompiled, which a process uses without compiling or a cache.
kernels: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tools/precompile.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# All that compares: losses, metrics, parsers, and seconds to a given quality.
bench: $(PEERS)
	.venv-peers/bin/python benchmarks/run.py --out runs/bench/losses.json --plot runs/bench/losses.svg
	.venv-peers/bin/python benchmarks/trees.py round
	.venv-peers/bin/python benchmarks/metrics.py
	.venv-peers/bin/python benchmarks/parse.py
	.venv-peers/bin/python benchmarks/time_to_quality.py --out runs/bench/quality.json

clean:
	rm -rf .venv .venv-dist .venv-minimum .venv-peers dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

# An environment of their own: TF-Ranking needs TensorFlow 2.15, which needs Python 3.11, NumPy 1 and a
# JAX of its time. Some ask for versions of PyTorch that are gone, so come without what they depend on;
# torchsort needs a compiler. What does not install is left out of the benchmark.
$(PEERS): pyproject.toml constraints.txt benchmarks/peers.txt
	$(PYTHON) -m venv --clear .venv-peers
	grep -E '^(lightgbm|sentence-transformers|torch|xgboost-cpu)==' constraints.txt > .venv-peers/constraints.txt
	.venv-peers/bin/pip install --quiet --constraint .venv-peers/constraints.txt --editable ".[report,text,trees]" \
		pytrec-eval-terrier ranx setuptools jax==0.4.30 tensorflow-ranking==0.5.5 || \
	.venv-peers/bin/pip install --quiet --constraint .venv-peers/constraints.txt --editable ".[report,text,trees]" \
		pytrec-eval-terrier ranx setuptools jax
	.venv-peers/bin/pip install --quiet --no-deps --requirement benchmarks/peers.txt
	-.venv-peers/bin/pip install --quiet --no-deps --no-build-isolation torchsort==0.1.10
	touch $@
