# Everything runs in .venv, which the bootstrap makes and keeps up to date.
PYTHON ?= python3
BOOTSTRAP = $(PYTHON) scripts/bootstrap.py

.PHONY: check test static setup format

# What CI runs (.ci/run), but for the start-up time, the tests that need model files, and the soak.
check: static
	$(BOOTSTRAP) test -m "not models"

# All tests; those that need model files are skipped where there are none.
test:
	$(BOOTSTRAP) test

# ruff, mypy and the import contracts.
static: setup
	.venv/bin/python scripts/static_checks.py

setup:
	@$(BOOTSTRAP) test --version

format: setup
	.venv/bin/ruff check --fix --quiet . ; .venv/bin/ruff format .
