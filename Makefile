# `make`            the patched, verified tree in build/
# `make test`       everything that needs no GPU
# `make lint`       the patches and this repository's own code
# `make edit`       a shell in build/ with quilt set up
# `make clean`      removes build/; `make distclean` the virtual environment too

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: all test lint edit clean distclean quilt
.DELETE_ON_ERROR:

all: $(VENV)/tools quilt
	@$(PY) apply.py

test: all $(VENV)/engine
	SGLANG_USE_CPU_ENGINE=1 PYTHONPATH=build/python $(PY) -m pytest $(PYTEST_ARGS)

lint: $(VENV)/tools
	@$(PY) apply.py --lint
	@$(PY) -m ruff check --quiet . && $(PY) -m ruff format --check .

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
