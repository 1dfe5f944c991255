# The two commands of the README. Both set themselves up in .venv and need only
# python3, make and git.
.PHONY: conformance kill-matrix test test-all tests quick quick-tests types soak chaos fidelity habits ecosystem zoo gpu benchmark clean
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# By files, because a file's tests share runs, fixtures and servers (conformance/scheduling.py);
# three workers, because some tests wait and two would leave a seventh of two cores idle.
SHARED := -n 3 --dist loadfile
# TIER=all runs what repeats a promise elsewhere as well (conftest.py).
TIER = default
SELECTED = $(if $(filter all,$(TIER)),,-m "not exhaustive")
JUDGES := $(filter-out %_properties.py,$(wildcard conformance/*/test_judge*.py))
QUICK := tests/unit tests/test_architecture.py $(JUDGES) tests/acceptance/verdict/test_smoke.py
# Where it is set, as in many container images, each of hundreds of inner pytest sessions
# would compile the installed plugins anew, with their assertions rewritten, and each rank and
# launched process this project's modules: a second and a quarter of one.
unexport PYTHONDONTWRITEBYTECODE
# JUNIT=FILE has the results written there, for a page of a CI job.
PYTEST = timeout -k 10 $(LIMIT) $(BIN)/python -m pytest $(JUNIT:%=--junitxml=%)

conformance: LIMIT = 1500
conformance: $(READY)
	@mkdir -p build/conformance
	$(PYTEST) conformance $(SELECTED) -q -rfE -p no:cacheprovider $(SHARED) \
	  --ddp-conformance-brief --ddp-conformance-report=build/conformance/report.json </dev/null

# Runs every check, not only its own guarantee's, on every mutant and writes which of them fail.
kill-matrix: LIMIT = 3600
kill-matrix: $(READY)
	$(PYTEST) conformance/test_mutants.py conformance/test_launched.py -q -p no:cacheprovider \
	  --ddp-kill-matrix=docs/kill-matrix.md -k test_mutant_dies </dev/null

# Both suites run, whatever becomes of the first.
test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) --keep-going tests conformance

# All world sizes, each rank's death, machines and engines, other people's libraries, CI files.
test-all:
	$(MAKE) test TIER=all

# What finds most mistakes, in a minute: style, types, the layers, units, the judges on hand-made
# histories, and every kind of verdict in one real run. The types beside the tests, on two cores.
quick: LIMIT = 300
quick: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --jobs=2 types quick-tests

types: $(READY)
	$(BIN)/mypy

# One inner run is not worth a warm interpreter.
quick-tests: LIMIT = 300
quick-tests: $(READY)
	DDP_TESTS_FRESH=1 $(PYTEST) $(QUICK) -q -p no:cacheprovider </dev/null

# By files as well, whose tests share inner runs; in their own order, in which whole sessions come
# first and units last, so that no worker is left alone with a long file.
tests: LIMIT = 3600
tests: $(READY) $(if $(filter all,$(TIER)),build/zoo/.ready)
	$(PYTEST) tests $(SELECTED) $(SHARED) --no-loadscope-reorder </dev/null

# Slow and legal work, 20 times with every core busy: none may be accused of a hang.
soak: LIMIT = 7200
soak: $(READY)
	DDP_ACCEPTANCE_SOAK=20 $(PYTEST) tests/acceptance/hangs/test_no_false_alarm.py </dev/null

# Random suites whose verdicts are known by construction; SECONDS and SEED say how long and which.
chaos: SECONDS = 3600
chaos: SEED = 0
chaos: $(READY)
	timeout -k 10 $$(($(SECONDS) + 600)) \
	  $(BIN)/python -m tests.chaos --seconds $(SECONDS) --seed $(SEED) </dev/null

# What this machine's GPUs can be asked, and gloo on the CPU; the report is made for an issue.
gpu: LIMIT = 3600
gpu: $(READY)
	timeout -k 10 $(LIMIT) $(BIN)/python -m pytest_ddp doctor --prove --report=build/gpu </dev/null

benchmark: $(READY)
	$(BIN)/python -m benchmarks

# Needs the package index the first time, and some twenty minutes.
fidelity: $(READY)
	$(BIN)/python -m fidelity

# Each habit of docs/habits.md under each way to run tests on ranks; twenty minutes, more on a busy
# machine.
habits: LIMIT = 3600
habits: $(READY) build/zoo/.ready
	timeout -k 10 $(LIMIT) $(BIN)/python -m fidelity.habits --write </dev/null

# Parts of other people's libraries, in an environment of their own; writes docs/ecosystem.md.
# The page's own test is for later: it compares with the page that is there.
ecosystem: build/ecosystem/.ready
	timeout -k 10 3600 build/ecosystem/bin/python -m pytest conformance/ecosystem -q \
	  --ignore=conformance/ecosystem/test_page.py -p no:cacheprovider -p ddp_conformance.plugin \
	  -n 2 --dist loadfile --ddp-conformance-report=build/ecosystem/verdicts.json </dev/null
	build/ecosystem/bin/python -m conformance.ecosystem build/ecosystem/verdicts.json
	timeout -k 10 600 build/ecosystem/bin/python -m pytest tests/acceptance/engines/test_accelerate.py \
	  -q -p no:cacheprovider </dev/null

build/ecosystem/.ready: pyproject.toml conformance/ecosystem/constraints.txt
	$(PYTHON) -m venv build/ecosystem
	build/ecosystem/bin/python -m pip install --quiet \
	  --constraint conformance/ecosystem/constraints.txt pip setuptools wheel torch
	build/ecosystem/bin/python -m pip install --quiet --no-build-isolation \
	  --constraint conformance/ecosystem/constraints.txt --editable '.[dev,ecosystem]'
	touch build/ecosystem/.ready

# Every kind of verdict, with all plugins of tests/acceptance/plugins/zoo.txt installed and autoloaded.
zoo: LIMIT = 1800
zoo: $(READY) build/zoo/.ready
	DDP_ACCEPTANCE_ZOO=$(CURDIR)/build/zoo/site-packages \
	DDP_ACCEPTANCE_ARGS=--randomly-dont-reorganize $(PYTEST) \
	  tests/acceptance/plugins/test_zoo.py tests/acceptance/verdict/test_smoke.py $(wildcard tests/acceptance/verdict/test_verdict_*.py) \
	  -n 2 --dist loadfile </dev/null

# Beside .venv and not in it, whose own tests are to run without them.
build/zoo/.ready: tests/acceptance/plugins/zoo.txt $(READY)
	rm -rf build/zoo
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation \
	  --target build/zoo/site-packages --requirement tests/acceptance/plugins/zoo.txt
	touch build/zoo/.ready

# torch comes first and pinned: left to a range of another package, pip would
# fetch the newest build with gigabytes of CUDA libraries. Nothing is built in
# isolation, because an isolated build would ignore the constraints. pip shows errors, no warnings.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --constraint constraints.txt pip setuptools wheel
	$(BIN)/python -m pip install -qq --constraint constraints.txt torch
	$(BIN)/python -m pip install -qq --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache
