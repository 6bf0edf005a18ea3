# Two commands do all the set-up on a fresh Debian machine: make demo, make test. See README.md.
.DEFAULT_GOAL := help
.PHONY: chaos systemd docs docs-test reference help setup demo test test-all test-fast test-slow test-stress mutation-sample test-pyslurm test-slurm-24.11 test-slurm-26.05 callers accounting sbatch-tests fuzz lint format bench evaluation screenshots clean
# Where .venv really is: ordinary users of the lab may not be able to pass this checkout (.ci/setup).
BIN = $(shell readlink -f .venv)/bin
PY = $(BIN)/python
# The lab with several users, and the two users made for the tests, need root.
ROOT := $(shell [ "$$(id -u)" = 0 ] || command -v sudo)

help: ## this list
	@grep -hE '^[a-z0-9.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: ## Debian's packages that are missing, and .venv
	@.ci/setup

demo: setup ## one job, all the way, on a real Slurm of 8 nodes with 8 GPUs each (as root or with sudo)
	@$(ROOT) $(PY) .ci/demo.py

# Workers follow the cores and the memory (tests/session_hooks.py); files with slow tests are begun first.
PARALLEL = -q -n auto --dist loadfile --no-loadscope-reorder
SELECTED = $(PARALLEL) -m "not slow and not frameworks and not callers and not packages"
test: setup ## what every change must pass: a real Slurm, root and two ordinary users (5 to 15 minutes on 2 cores)
	@$(ROOT) $(PY) -m pytest $(SELECTED)

test-all: test test-slow callers accounting packages docs-test test-slurm-24.11 test-slurm-26.05 ## all that can be run without a GPU (hours)

test-stress: setup ## the same as make test while four busy loops run, RUNS times; what failed, and how often
	@$(ROOT) $(PY) .ci/stress.py --runs $(or $(RUNS),1) -- $(SELECTED)

chaos: setup ## jobs of two users while daemons, disks and the clock fail; then lost runs, doubled actions … are counted (MINUTES=20 SEED=)
	@$(ROOT) $(PY) .ci/chaos --minutes $(or $(MINUTES),20) $(if $(SEED),--seed $(SEED)) $(ARGS)

mutation-sample: setup ## how many of 200 small mutations of the product the tests detect (an hour; ARGS=--help)
	@$(ROOT) $(PY) .ci/mutation_sample.py $(ARGS) -- $(SELECTED)

test-fast: setup ## what needs neither Slurm nor PyTorch
	@$(PY) -m pytest -q -m "not slow and not lab and not torch and not packages"

test-slurm-24.11: ## what needs Slurm, on Debian 13's 24.11: a chroot in /var/cache/slurmwrap (2 GB, SLURMWRAP_RELEASES; slow)
	@$(ROOT) env SLURMWRAP_RELEASES="$(SLURMWRAP_RELEASES)" .ci/release 24.11 test

test-slurm-26.05: ## the same on forky's 26.05 (docs/releases.md)
	@$(ROOT) env SLURMWRAP_RELEASES="$(SLURMWRAP_RELEASES)" .ci/release 26.05 test

PYTHON = $(PY)
test-pyslurm: setup ## both adapters of Slurm side by side; PYTHON=.../bin/python: one that has PySlurm (docs/pyslurm.md)
	@$(ROOT) $(PYTHON) -m pytest -q tests/slurm/test_contract.py

test-slow: ## the exhaustive tests: every training script and mutant with the frameworks they use, full tables, many kills
	@.ci/setup dev,docs,examples,sim,frameworks
	@$(ROOT) $(PY) -m pytest $(PARALLEL) -m "slow or frameworks"

callers: ## Snakemake, submitit, dask-jobqueue … with gsub as their sbatch (slow)
	@.ci/setup dev,examples,sim,callers
	@$(ROOT) $(PY) -m pytest -q -m callers

accounting: ## limits of QOS and association, history of runs, two clusters, on labs with slurmdbd and a MariaDB of its own (slow)
	@.ci/setup dev,examples,sim accounting
	@$(ROOT) $(PY) -m pytest -q tests/slurm/test_accounting*.py

sbatch-tests: ## Slurm's own tests of sbatch with gsub in its place: SUITE=SLURM'S SOURCES [ARGS=...] (docs/sbatch-tests.md; very slow)
	@.ci/setup dev,sim accounting
	@$(ROOT) $(PY) .ci/sbatch_tests --suite "$(SUITE)" --lab-option=--accounting $(ARGS)

docs: setup ## the documentation as a site in build/docs; a broken link or anchor, or a page that is due, is an error
	@$(PY) -m pytest -q tests/docs -m "not lab"
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict -f .mkdocs.yml
	@echo "build/docs/index.html"

docs-test: setup ## every command of the documentation and of the help texts, run on a real Slurm (slow; make test runs README's)
	@$(ROOT) $(PY) -m pytest $(PARALLEL) tests/docs

GENERATED = configuration_page database_page doctor_page docs_formulas option_table report_schema list_schemas docs_reference docs_man docs_pictures
reference: setup ## what docs/ has out of the code, anew: schemas, tables, docs/reference, docs/man, docs/images
	@cd .ci && for s in $(GENERATED); do $(PY) $$s.py || exit 1; done

packages: ## wheel, sdist, Debian package and RPM, built and tried where nothing of ours is (slow; a clean chroot, 0.4 GB)
	@.ci/setup dev,examples,sim,packages packages
	@$(ROOT) $(PY) -m pytest -q -m packages tests/packages

systemd: setup ## the package, Debian's Slurm and our units on a Debian 12 and 13 that are booted in a container (slow; as root)
	@.ci/setup dev,examples,sim,packages packages
	@$(ROOT) $(PY) -m pytest -q -m packages tests/install

fuzz: setup ## the property tests on new random examples, many more of them (slow)
	@HYPOTHESIS_PROFILE=search $(PY) -m pytest -q -m "not slow and not lab" tests/sbatch tests/diagnosis tests/report tests/store

lint: setup ## ruff, mypy --strict, import-linter, and Python 3.6 syntax where it is promised
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(BIN)/lint-imports
	@$(PY) .ci/lint36.py slurmwrap/inject slurmwrap/node_hooks

format: setup ## ruff's formatter and safe fixes
	@$(PY) -m ruff check --fix -q . ; $(PY) -m ruff format -q .

bench: setup ## the benchmarks: ratios against a peer, in one run
	@for b in bench/*.py; do echo "== $$b"; $(ROOT) $(PY) $$b || exit 1; done

evaluation: setup ## docs/evaluation.md and its plots: the simulator beside the papers' figures (under 15 minutes)
	@$(PY) bench/evaluation

screenshots: setup ## docs/images/report-*.png: the report of a synthetic site, by Chromium (three minutes)
	@$(PY) .ci/screenshots.py $(ARGS)

clean: ## what the tools left
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build
