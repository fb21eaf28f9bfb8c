# Sets a machine up and runs the three things worth running. A Debian 12 or 13, as root, with Python 3.11 or newer and
# make is enough; everything of Python goes into .venv, templates and downloads into CELLBOX_DATA_DIR.
#
#   make demo    the main job on real data; builds the template the first time
#   make test    all tests
#   make check   format, lint, types, layers, generated files
#   make lock    new lock files (see tools/lock.py)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The largest first: its downloads then run while `base` is bootstrapped.
TEMPLATES ?= code-interpreter polyglot node base
PYTEST_ARGS ?=

# Checked against what is on the machine: command, then the Debian package that has it.
PACKAGES := mmdebstrap:mmdebstrap gpgv:gpgv xz:xz-utils

# The data directory is the daemon's own default unless the caller names one.
DATA_DIR = $${CELLBOX_DATA_DIR:-$$($(BIN)/python -c 'from cellbox.control.settings import default_data_dir as d; print(d())')}

.PHONY: help demo test check lock clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.demo-installed $(VENV)/.system
	@echo "==> engine and template"
	@$(BIN)/python tools/build_templates.py code-interpreter
	@echo "==> the demo"
	@$(BIN)/python examples/demo.py

test: $(VENV)/.test-installed $(VENV)/.system
	@echo "==> environments of the agent frameworks"
	@$(BIN)/python tools/frameworks.py > /dev/null
	@echo "==> templates"
	@$(BIN)/python tools/build_templates.py $(TEMPLATES)
	@echo "==> tests"
	@data="$(DATA_DIR)"; \
	if [ -x "$$data/engine/bin/runsc" ]; then export CELLBOX_RUNSC="$${CELLBOX_RUNSC:-$$data/engine/bin/runsc}"; fi; \
	CELLBOX_TEMPLATES_DIR="$$data" $(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.check-installed
	@echo "==> ruff";         $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "==> basedpyright"; $(BIN)/basedpyright
	@echo "==> layers";       $(BIN)/lint-imports
	@for tool in $$(grep -l -e --check tools/*.py docs/*.py); do echo "==> $$tool"; $(BIN)/python "$$tool" --check; done

lock: $(VENV)/.installed
	@$(BIN)/python tools/lock.py

clean:
	rm -rf $(VENV)

# A venv needs ensurepip, which Debian ships apart from python3. The one stamp per lock makes a second run quick.
$(VENV)/.made:
	@echo "==> virtual environment ($$($(PYTHON) --version))"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || tools/apt_install.sh "$$($(PYTHON) -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}-venv")')"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made requirements.lock pyproject.toml
	$(call install,requirements.lock)
	@$(PIP) --no-build-isolation -e .

$(VENV)/.demo-installed: $(VENV)/.installed requirements-demo.lock
	$(call install,requirements-demo.lock)

$(VENV)/.test-installed: $(VENV)/.installed requirements-test.lock
	$(call install,requirements-test.lock)

$(VENV)/.check-installed: $(VENV)/.installed requirements-check.lock
	$(call install,requirements-check.lock)

# A lock is complete, so pip need not look for dependencies.
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps
define install
	@echo "==> Python packages of $(1)"
	@$(PIP) --require-hashes --only-binary=:all: -r $(1)
	@touch $@
endef

$(VENV)/.system: $(VENV)/.made Makefile
	@missing=""; for pair in $(PACKAGES); do command -v "$${pair%%:*}" >/dev/null || missing="$$missing $${pair##*:}"; done; \
	[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || [ -e /usr/share/keyrings/debian-archive-keyring.pgp ] || missing="$$missing debian-archive-keyring"; \
	if [ -n "$$missing" ]; then tools/apt_install.sh $$missing; fi
	@touch $@
