# `make conformance` and `make test` are the commands of the README. They create .venv on first use,
# and need only python3, make and git.
.PHONY: conformance kill-matrix chance test test-all tests quick quick-tests types soak chaos random-programs fidelity habits parity races ecosystem zoo gpu benchmark versions release docs clean
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Distributed by file, because the tests of a file share runs, fixtures and servers
# (conformance/scheduling.py). More workers than two cores have, because tests wait: those of hangs
# for a timeout, so that `tests` has more of them than `conformance`, where the cores are busy.
SHARED = -n $(WORKERS) --dist loadfile
# TIER=all also runs the tests that repeat a promise in another setting (conftest.py).
TIER = default
SELECTED = $(if $(filter all,$(TIER)),,-m "not exhaustive")
JUDGES := $(filter-out %_properties.py,$(wildcard conformance/*/test_judge*.py))
QUICK := tests/unit tests/test_architecture.py $(JUDGES) tests/acceptance/verdict/test_smoke.py
# Many container images set this variable. With it, each of hundreds of inner pytest sessions would
# compile the installed plugins again, with their assertions rewritten (1 s), and each rank and
# launched process this project's modules (0.25 s).
unexport PYTHONDONTWRITEBYTECODE
# JUNIT=FILE: write the results to this file, for the page of a CI job.
# STUCK: a test that takes longer fails with the stacks of all threads, and the others go on.
STUCK = -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
PYTEST = timeout -k 10 $(LIMIT) $(BIN)/python -m pytest $(STUCK) $(JUNIT:%=--junitxml=%)

conformance: LIMIT = 1500
conformance: WORKERS = 3
conformance: $(READY)
	@mkdir -p build/conformance
	$(PYTEST) conformance $(SELECTED) -q -rfE -p no:cacheprovider $(SHARED) \
	  --ddp-conformance-brief --ddp-conformance-report=build/conformance/report.json </dev/null

# Runs all checks on every mutant, not only that of its own guarantee, and writes which of them
# fail.
kill-matrix: LIMIT = 3600
kill-matrix: $(READY)
	$(PYTEST) conformance/test_mutants.py conformance/test_launched.py -q -p no:cacheprovider \
	  --ddp-kill-matrix=docs/kill-matrix.md -k test_mutant_dies </dev/null

# Runs every mutant and benign variant with each of SEEDS seeds of delays, and names those whose
# verdict is not the same in all of them. PARTS names other tests.
chance: SEEDS = 10
chance: PARTS = conformance/test_mutants.py conformance/test_benign_variants.py conformance/test_launched.py
chance: WORKERS = 3
chance: $(READY)
	$(BIN)/python -m conformance.chance --seeds $(SEEDS) $(PARTS) $(SELECTED) $(SHARED) </dev/null

# --keep-going: the tests run even if the conformance suite fails.
test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) --keep-going conformance tests

# Also all world sizes, the death of each rank, machines and engines, other people's libraries, CI
# files.
test-all:
	$(MAKE) test TIER=all

# Finds most mistakes in a minute: style, types, the direction of imports, unit tests, the judges on
# hand-made histories, and every kind of verdict in one real run. mypy runs beside the tests, on the
# second core.
quick: LIMIT = 300
quick: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --jobs=2 types quick-tests

types: $(READY)
	$(BIN)/mypy

# DDP_TESTS_FRESH: a single inner run is not worth the start of a server for inner sessions.
quick-tests: LIMIT = 300
quick-tests: $(READY)
	DDP_TESTS_FRESH=1 $(PYTEST) $(QUICK) -q -p no:cacheprovider </dev/null

# Also distributed by file, since the tests of a file share inner runs. Not reordered: whole
# sessions come first and unit tests last, so that no worker ends alone with a long file.
tests: LIMIT = 3600
tests: WORKERS = 5
tests: $(READY) $(if $(filter all,$(TIER)),build/zoo/.ready)
	$(PYTEST) tests $(SELECTED) $(SHARED) --no-loadscope-reorder </dev/null

# Slow and legal work, 20 times with every core busy: no run may be reported as a hang.
soak: LIMIT = 7200
soak: $(READY)
	DDP_ACCEPTANCE_SOAK=20 $(PYTEST) tests/acceptance/hangs/test_no_false_alarm.py </dev/null

# Random suites whose verdicts are known by construction. SECONDS is the duration, SEED selects
# them.
chaos: SECONDS = 3600
chaos: SEED = 0
chaos: $(READY)
	timeout -k 10 $$(($(SECONDS) + 600)) \
	  $(BIN)/python -m tests.chaos --seconds $(SECONDS) --seed $(SEED) </dev/null

# Random programs of collectives and messages, on gloo alone and under the plugin: no program that
# ends may be called a hang, and each planted hang must be proved.
random-programs: COUNT = 2000
random-programs: SEED = 0
random-programs: $(READY)
	timeout -k 10 $$(($(COUNT) * 4 + 600)) \
	  $(BIN)/python -m tests.random_programs --first $(SEED) --count $(COUNT) </dev/null

# Tests on this machine's GPUs, and with gloo on the CPU; the report can be attached to an issue.
gpu: LIMIT = 3600
gpu: $(READY)
	timeout -k 10 $(LIMIT) $(BIN)/python -m pytest_ddp doctor --prove --report=build/gpu </dev/null

benchmark: $(READY)
	$(BIN)/python -m benchmarks

# With other versions of Python, torch and pytest (noxfile.py), each in an environment of its own.
versions: $(READY)
	$(BIN)/nox --session versions

# Builds wheel and sdist in dist/, checks them, and tests each in a fresh environment. Nothing is
# uploaded.
release: LIMIT = 1800
release: $(READY)
	$(PYTEST) tests/release -q -p no:cacheprovider </dev/null
	$(BIN)/nox --session release

# Needs the package index the first time, and some twenty minutes.
fidelity: $(READY)
	$(BIN)/python -m fidelity

# Runs each habit of docs/habits.md with each way to run tests on ranks; takes twenty minutes, more
# on a busy machine.
habits: LIMIT = 3600
habits: $(READY) build/zoo/.ready
	timeout -k 10 $(LIMIT) $(BIN)/python -m fidelity.habits --write </dev/null

# Runs wrong and right programs in several worlds, and writes how far each was from the reference
# into docs/parity.md; some ten minutes.
parity: LIMIT = 3600
parity: $(READY)
	timeout -k 10 $(LIMIT) $(BIN)/python -m fidelity.parity --write </dev/null

# Explores programs with known races and legal ones, and tests of torch, and compares with other ways
# to find the races; writes docs/races.md; prints what exploring costs. At most an hour on two cores.
races: LIMIT = 3600
races: $(READY)
	$(BIN)/python -m benchmarks explored </dev/null
	timeout -k 10 $(LIMIT) $(BIN)/python -m fidelity.races --table --write </dev/null

# Checks parts of other people's libraries, in an environment of their own; writes
# docs/ecosystem.md. test_page.py is left out, since it compares with the page as it was before.
ecosystem: build/ecosystem/.ready
	timeout -k 10 3600 build/ecosystem/bin/python -m pytest conformance/ecosystem -q \
	  --ignore=conformance/ecosystem/test_page.py -p no:cacheprovider -p ddp_conformance.plugin \
	  -n 2 --dist loadfile --ddp-conformance-report=build/ecosystem/verdicts.json </dev/null
	build/ecosystem/bin/python -m conformance.ecosystem build/ecosystem/verdicts.json
	timeout -k 10 600 build/ecosystem/bin/python -m pytest tests/acceptance/extensions/engines/test_accelerate.py \
	  -q -p no:cacheprovider </dev/null

build/ecosystem/.ready: pyproject.toml reference/pyproject.toml conformance/ecosystem/constraints.txt
	$(PYTHON) -m venv build/ecosystem
	build/ecosystem/bin/python -m pip install --quiet \
	  --constraint conformance/ecosystem/constraints.txt pip setuptools wheel torch
	build/ecosystem/bin/python -m pip install --quiet --no-build-isolation \
	  --constraint conformance/ecosystem/constraints.txt \
	  --editable . --editable ./reference --group dev --group ecosystem
	touch build/ecosystem/.ready

# Tests every kind of verdict with all plugins of tests/acceptance/plugins/zoo.txt installed and
# loaded.
zoo: LIMIT = 1800
zoo: $(READY) build/zoo/.ready
	DDP_ACCEPTANCE_ZOO=$(CURDIR)/build/zoo/site-packages \
	DDP_ACCEPTANCE_ARGS=--randomly-dont-reorganize $(PYTEST) \
	  tests/acceptance/plugins/test_zoo.py tests/acceptance/verdict/test_smoke.py $(wildcard tests/acceptance/verdict/test_verdict_*.py) \
	  -n 2 --dist loadfile </dev/null

# Beside .venv, not in it, since all other tests run without these plugins.
build/zoo/.ready: tests/acceptance/plugins/zoo.txt $(READY)
	rm -rf build/zoo
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation \
	  --target build/zoo/site-packages --requirement tests/acceptance/plugins/zoo.txt
	touch build/zoo/.ready

# torch is installed first and pinned: for the version range of another package, pip would download
# the newest build with gigabytes of CUDA libraries. No build isolation, because an isolated build
# ignores the constraints. pip shows errors and no warnings.
$(READY): pyproject.toml reference/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --constraint constraints.txt pip setuptools wheel
	$(BIN)/python -m pip install -qq --constraint constraints.txt torch
	$(BIN)/python -m pip install -qq --constraint constraints.txt --no-build-isolation \
	  --editable . --editable ./reference --group dev --group docs
	touch $(READY)

# The site, into build/docs, without the network; a warning is an error.
docs: $(READY)
	timeout -k 10 600 $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet \
	  docs build/docs </dev/null
	@echo "build/docs/index.html"

clean:
	rm -rf .venv .nox build dist *.egg-info reference/*.egg-info .mypy_cache .ruff_cache .pytest_cache
