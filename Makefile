# Needs Java 17 or later, Python 3.11 to 3.13 with pip, and make. Every target installs the rest itself.
.DEFAULT_GOAL := help
SHELL := /bin/sh
.PHONY: help setup demo test test-fast lint classes pure real soak bench bench-catalog trace reference bundle-models site plain jupyter wheel clean-home clean

PYTHON ?= python3
UV_VERSION := 0.13.9
HOME_FOLDER := $(if $(SESSIONLAKE_HOME),$(SESSIONLAKE_HOME),.sessionlake)
BIN := .venv/bin
READY := .venv/.ready
USUAL = $(BIN)/pytest -q -m "not soak" --durations=10
# The slowest test files of tests/unit and tests/bundle, which test-fast leaves out. Most try many random streams.
LONGER := bundle/test_mutations bundle/test_wheel unit/test_accumulate unit/test_archives unit/test_asof \
  unit/test_cuts unit/test_debezium_law unit/test_decode unit/test_docs unit/test_docs_feeds unit/test_enrich \
  unit/test_feed_compiled unit/test_feed_decoder unit/test_feed_inference unit/test_feed_rows unit/test_final \
  unit/test_forgetting unit/test_gold_testing unit/test_intervals unit/test_kafka_time unit/test_law \
  unit/test_limits unit/test_names unit/test_once_order unit/test_own_form_feed unit/test_payloads \
  unit/test_plain_english unit/test_points unit/test_positions unit/test_processor_law unit/test_products \
  unit/test_products_of_tables unit/test_reference_pages unit/test_report_page unit/test_resharding \
  unit/test_rolling unit/test_rules unit/test_seq_order unit/test_silences unit/test_simulate \
  unit/test_sketches unit/test_snapshots unit/test_texts_in_notebooks unit/test_weights
# Containers often set this. Then each of the many processes of a run compiles all its imports, which takes seconds.
unexport PYTHONDONTWRITEBYTECODE

help: ## show this list of targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with all dependencies (other targets do this first)

demo: $(READY) ## run the whole pipeline on simulated Kafka input for a minute, then verify it
	@$(BIN)/sessionlake demo

test: $(READY) ## check style and types, and run every test except the long ones
	@$(MAKE) --no-print-directory -j3 lint pure real

test-fast: $(READY) lint ## check style and types, and run the short tests that need no JVM and no broker, in under 90 s
	@$(BIN)/pytest -q -m "not soak" -n 2 $(LONGER:%=--ignore=tests/%.py) tests/unit tests/bundle

lint: $(READY) ## check style and types with ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# `pure` and `real` run in parallel: the pure tests use the CPU time that the real ones leave while they wait. The output
# of `pure` is printed at its end, so that the two outputs do not mix.
pure: $(READY)
	@output=$$($(USUAL) -n 2 tests/unit tests/bundle 2>&1); code=$$?; printf '%s\n' "$$output"; exit $$code

real: $(READY) classes
	@$(USUAL) -n 3 --dist loadfile --no-loadscope-reorder tests/catalog tests/integration tests/spark

classes: $(READY)
	@PYTHONPATH=tests $(BIN)/python -m support.class_archive

soak: $(READY) ## run the long tests, which take hours
	@$(BIN)/pytest -m "soak or hypothesis" --hypothesis-profile=thorough

bench: $(READY) ## measure the cost of a million messages in bronze, silver and gold
	@$(BIN)/python tests/perf/bench.py

bench-catalog: $(READY) ## measure CPU time and Spark jobs of a million messages in a catalog and in folders
	@$(BIN)/python tests/perf/bench.py --shape W1 --catalog

trace: $(READY) ## count the modules on the path of a message, a start or a command
	@$(BIN)/python tests/perf/trace_modules.py

reference: $(READY) ## write the pages of docs/reference that are made from the code
	@PYTHONPATH=tests $(BIN)/python -m support.reference

bundle-models: $(READY) ## write the keys that a bundle's resources may have, from the package databricks-bundles
	@PYTHONPATH=tests $(BIN)/python -m support.bundle_models

site: $(READY) ## build the documentation as a site into site/, with its links checked
	@$(BIN)/mkdocs build --strict --quiet

plain: $(READY) ## list long sentences, and words that have a plainer alternative, in code and docs
	@PYTHONPATH=tests $(BIN)/python -m support.plain_english src docs notebooks README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md

jupyter: $(READY) ## convert the notebooks to .ipynb, for Jupyter
	@$(BIN)/python -m sessionlake.notebook.jupyter notebooks/*.py

wheel: $(READY) ## build the wheel into dist/
	@$(BIN)/uv build --wheel

clean-home: ## stop the embedded broker and delete tables, checkpoints and Kafka data
	@if [ -x $(BIN)/sessionlake ] && [ -d "$(HOME_FOLDER)/kafka" ]; then $(BIN)/sessionlake broker down; fi
	rm -rf "$(HOME_FOLDER)"

clean: clean-home ## do clean-home, and delete .venv and all build output
	rm -rf .venv dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The stamp file is newer than the lock file only if the environment has the packages in the lock file.
$(READY): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
	  echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13: install one, or name another one with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; \
	  found=$$($$java -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1); \
	  [ "$${found:-0}" -ge 17 ] || { \
	  echo "Java 17 or later is needed, found $${found:-none} as $$java: install one (apt install openjdk-17-jre-headless, brew install openjdk@17) or set JAVA_HOME" >&2; exit 1; }
	@echo "Setting up .venv (once) ..." >&2
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv || { \
	  echo "Python's venv module does not work: install it (apt install python3-venv)" >&2; rm -rf .venv; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@env -u VIRTUAL_ENV UV_PROJECT_ENVIRONMENT=.venv UV_PYTHON_DOWNLOADS=never \
	  $(BIN)/uv sync --frozen --all-extras --inexact --quiet
	@touch $@
