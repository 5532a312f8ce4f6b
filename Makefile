# `make`            the patched, verified tree in build/
# `make test`       everything that needs no GPU
# `make test-gpu`   what needs one or more GPUs; `make bench-gpu` measures
# `make lint`       the patches and this repository's own code
# `make prove`      the tests themselves: each patch taken away, and each of many mutations, must turn one red
# `make patched-image BASE_IMAGE=... TAG=...`    the patched image over a base image
# `make wheel`      the patched package as a wheel in dist/; `make overlay` the changed files as one program
# `make edit`       a shell in build/ with quilt set up
# `make drift`       the reports in docs/results/ on how the series fits older releases
# `make clean`      removes build/; `make distclean` the virtual environment too

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
export PYTHONDONTWRITEBYTECODE := 1

PROOFS := tests/verify_series.py tests/mutations.py

.PHONY: all test prove test-gpu bench-gpu lint patched-image wheel overlay drift edit clean distclean quilt
.DELETE_ON_ERROR:

all: $(VENV)/tools quilt
	@$(PY) apply.py

test: all $(VENV)/engine
	CUDA_VISIBLE_DEVICES= PYTHONPATH=build/python $(PY) -m pytest $(PYTEST_ARGS)

prove: all $(VENV)/engine
	@for proof in $(PROOFS); do PYTHONPATH=build/python $(PY) $$proof || exit 1; done

# GPU_PY: a Python that has SGLang's dependencies and requirements/gpu.txt; STOCK: the directory that has its unpatched package.
GPU_PY ?= python3
STOCK ?= $(shell cd / && $(GPU_PY) -c 'import importlib.util, os; found = importlib.util.find_spec("sglang"); \
  print(os.path.dirname(os.path.dirname(found.origin)) if found else "")')
RESULTS ?= docs/results/prefill

test-gpu: all
	PYTHONPATH=build/python $(GPU_PY) -m pytest --confcutdir=tests/gpu tests/gpu $(PYTEST_ARGS)

bench-gpu: all
	@test -n "$(STOCK)" || { echo "$(GPU_PY) has no sglang to compare with: make bench-gpu STOCK=DIRECTORY" >&2; exit 3; }
	$(GPU_PY) -m bench.prefill --stock $(STOCK) --patched build/python --out $(RESULTS) $(BENCH_ARGS)

lint: $(VENV)/lint
	@$(PY) apply.py --lint
	@$(PY) -m ruff check --quiet . && $(PY) -m ruff format --check .
	@$(VENV)/bin/hadolint patchseries/Containerfile && $(VENV)/bin/shellcheck .ci/run
	@if command -v actionlint >/dev/null; then PATH=$(CURDIR)/$(VENV)/bin:$$PATH actionlint; \
	  else echo "lint: actionlint is not installed, so the workflow files were not checked"; fi

# ENGINE: docker, podman or buildah; ACCEPT_BASE=1: the base may have other files that no patch touches.
patched-image: $(VENV)/tools
	@test -n "$(BASE_IMAGE)" && test -n "$(TAG)" || \
	  { echo "make patched-image needs BASE_IMAGE=... and TAG=..." >&2; exit 3; }
	@$(PY) apply.py --image "$(BASE_IMAGE)" "$(TAG)" $(if $(ENGINE),--engine $(ENGINE)) $(if $(ACCEPT_BASE),--accept-base)

# WHEELS: parts of the names of pinned wheels, such as aarch64, or all; default: the one for this Python and machine.
wheel: $(VENV)/tools
	@$(PY) apply.py --wheel $(WHEELS)

overlay: $(VENV)/tools
	@$(PY) apply.py --overlay

drift: $(VENV)/tools
	@for ref in 0.5.22 0.5.21; do \
	  $(PY) apply.py --check $$ref --markdown > docs/results/drift-$$ref.md || test $$? -lt 3 || exit 3; \
	done

edit: all
	@$(PY) apply.py --edit

clean:
	@test ! -x $(PY) || $(PY) apply.py --clean
	@rm -rf .pytest_cache .ruff_cache

distclean: clean
	rm -rf $(VENV)

# The light environment: what apply.py needs.
$(VENV)/tools: requirements/tools.txt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PIP) -r requirements/tools.txt
	@touch $@

$(VENV)/lint: $(VENV)/tools requirements/lint.txt
	$(PIP) -r requirements/lint.txt
	@touch $@

# What the tests need: about 7 GB.
$(VENV)/engine: $(VENV)/tools requirements/torch.txt requirements/engine-nodeps.txt requirements/engine.txt requirements/test.txt
	$(PIP) -r requirements/torch.txt
	$(PIP) --no-deps -r requirements/engine-nodeps.txt
	$(PIP) -r requirements/torch.txt -r requirements/engine.txt -r requirements/test.txt
	@touch $@

# quilt is the reference that every build is checked against; installed where that is possible without a question.
quilt:
	@command -v quilt >/dev/null || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	    { apt-get install -y -qq quilt || { apt-get update -qq && apt-get install -y -qq quilt; }; } >/dev/null; } || \
	  { echo "quilt is not installed: install it (Debian: apt-get install quilt)" >&2; exit 3; }
