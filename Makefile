# Every target creates .venv if needed; it requires only Python >= 3.11, git, make and a package index.
SHELL := /bin/bash
PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$each; break; }; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
MADE_FROM := pyproject.toml constraints.txt

.PHONY: help demo test test-all test-django check bench scale chaos evidence docs site release clean

help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: .venv/.run  ## See real work survive a killed worker
	@$(BIN)/tenure demo

test: .venv/.dev  ## The everyday tests: about five minutes on two cores
	$(BIN)/python tests/run.py everyday

test-all: .venv/.dev .venv/.browser  ## All tests: about half an hour on two cores (TESTED=yes: only those that make test leaves out)
	$(BIN)/python tests/run.py $(if $(TESTED),rest,all)
	$(BIN)/python tests/django/tasks_suite/run.py

test-django: .venv/.dev  ## Django's own tests of its tasks, against Tenure's backend (needs Python 3.12)
	$(BIN)/python tests/django/tasks_suite/run.py

check: .venv/.dev  ## Linters, types, import rules, generated docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typing/ok.py tests/typing/errors.py
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python docs/settings.py
	$(BIN)/python ops/generate.py --check

bench: .venv/.bench  ## Tenure against its peers, on each store, and as tables grow
	$(BIN)/python -m bench --write docs/bench.md
	$(BIN)/python -m bench --store postgres --write docs/bench.md
	$(BIN)/python -m bench --store postgres --growth --write docs/bench.md
	$(BIN)/python -m bench --store redis --write docs/bench.md
	$(BIN)/python -m bench --store redis --growth --write docs/bench.md
	$(BIN)/python -m bench --schedules --write docs/bench.md
	$(BIN)/python -m bench --dashboard --store sqlite --write docs/bench.md
	$(BIN)/python -m bench --dashboard --store postgres --write docs/bench.md
	$(BIN)/python -m bench --dashboard --store redis --write docs/bench.md
	for store in sqlite postgres redis; do \
		$(BIN)/python -m bench --limits --store $$store --write docs/bench.md || exit 1; done
	$(BIN)/python -m bench --faults --write docs/bench.md

scale: .venv/.bench  ## What a job costs, and what binds first: two hours, and it writes docs/scale.md
	$(BIN)/python -m bench --scale --write docs/scale.md

chaos: .venv/.dev  ## Random faults, and a verdict: make chaos STORE=redis SECONDS=300 SEED=7 LOAD=trickle SCALE=0.5
	PYTHONPATH=tests $(BIN)/python -m chaos --store $(or $(STORE),sqlite) --seconds $(or $(SECONDS),60) \
		--seed $(or $(SEED),0) --load "$(LOAD)" --scale $(or $(SCALE),1) $(if $(UPGRADE),--upgrade) --values "$(VALUES)"

evidence: .venv/.dev  ## Half an hour of faults on each store, each load, all crash tests, the deleted guards (hours)
	for store in sqlite sqlite-nats postgres postgres-poll postgres-nats redis redis-nats redis-cluster; do \
		PYTHONPATH=tests $(BIN)/python -m chaos --store $$store --seconds 1800 || exit 1; done
	for store in sqlite postgres redis; do \
		PYTHONPATH=tests $(BIN)/python -m chaos --store $$store --seconds 300 --load all || exit 1; done
	for store in sqlite postgres redis; do \
		PYTHONPATH=tests $(BIN)/python -m chaos --store $$store --seconds 300 --upgrade || exit 1; done
	TENURE_TEST_FULL=1 $(BIN)/pytest -q tests/crash tests/chaos tests/web/test_browser*.py
	$(BIN)/python -m tests.guards --json .chaos/guards.json
	PYTHONPATH=tests $(BIN)/python -m chaos.evidence .chaos docs/evidence.md

docs: .venv/.dev  ## Regenerate the generated parts of the docs, and the dashboard and alert rules in ops
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/settings.py --write
	$(BIN)/python ops/generate.py

site: .venv/.site  ## The pages as a site, with search and the Python API: .site/html
	$(BIN)/python docs/site.py

release: .venv/.dev  ## Build the wheel and the sdist, check them, tag the version of pyproject.toml; uploads nothing
	@$(BIN)/python tools/release.py

clean:  ## Remove .venv and every cache
	rm -rf .venv .site .chaos .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.made:
	@test -n "$(PYTHON)" || { echo "Tenure needs Python 3.11 or newer; none was found as python3, python3.11, 3.12, 3.13 or 3.14" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "the venv module is missing: install it (on Debian: python3-venv)" >&2; exit 1; }
	@touch $@

.venv/.run: .venv/.made $(MADE_FROM)
	@echo "installing Tenure into .venv …"
	@$(PIP) --editable .
	@touch $@

.venv/.dev: .venv/.made $(MADE_FROM)
	@echo "installing Tenure and its development tools into .venv …"
	@$(PIP) --editable '.[dev]'
	@touch $@ .venv/.run

.venv/.browser: .venv/.made
	@command -v chromium chromium-browser google-chrome >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& echo "installing chromium, which the tests of the dashboard drive …" && apt-get update -qq \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -qq -o DPkg::Lock::Timeout=300 --no-install-recommends chromium >/dev/null; } \
		|| { echo "the tests of the dashboard drive a real browser: install chromium (on Debian: apt install chromium)" >&2; exit 1; }
	@touch $@

.venv/.site: .venv/.made $(MADE_FROM)
	@echo "installing Tenure and the site's tools into .venv …"
	@$(PIP) --editable '.[site]'
	@touch $@ .venv/.run

.venv/.bench: .venv/.made $(MADE_FROM)
	@echo "installing Tenure and its peers into .venv …"
	@$(PIP) --editable '.[bench]'
	@touch $@ .venv/.run
