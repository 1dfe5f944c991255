"""The two tiers of the tests: those of ``make test``, and those that only ``make test-all`` runs.

``make test`` tests each promise once. Tests that repeat a promise in another setting (another world
size, another rank that dies, several machines, other people's libraries) are marked ``exhaustive``
here, in one table, so that test files need no marks for tiers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent

EXHAUSTIVE = (
    "conformance/ecosystem/",
    # Other optimizers and faults on the same meshes.
    "conformance/model/test_meshes.py::test_further_steps",
    "tests/acceptance/ci/",
    "tests/acceptance/extensions/comms/test_four_ranks.py",
    # GPUs of several machines.
    "tests/acceptance/extensions/devices/",
    "tests/acceptance/extensions/engines/",
    "tests/acceptance/extensions/machines/",
    # Whole programs of the reference systems, whose parts `make conformance` checks.
    *(f"tests/reference/{name}/test_program.py" for name in ("resnet", "training", "windows")),
    "tests/reference/training/test_moving.py::test_a_checkpoint_moves_between_all",
    "tests/reference/training/test_ranks.py",
    # Each red once on a busy machine, and not understood: 60 of 60 runs of what the first looks at
    # had the right text afterwards.
    "tests/acceptance/extensions/adopt/test_spawn_lies.py::test_what_became_of_the_others",
    "tests/acceptance/extensions/adopt/test_loaders.py::test_served_processes_have_workers",
    # These need minutes or the package index; `make release` runs them as well.
    *(f"tests/release/test_{name}.py" for name in ("clean_install", "sdist")),
    # These need build/zoo: plugins of other projects, installed beside the environment.
    *(f"tests/acceptance/plugins/test_{name}.py" for name in ("allure", "benchmark", "debugpy")),
    *(f"tests/acceptance/plugins/test_{name}.py" for name in ("editors", "testmon", "zoo")),
    # What a backend in Python shows (test_backends.py), with one that c++ compiles for 19 s.
    "tests/acceptance/devices/test_cpp_backend.py",
    # Again in another setting: by pytest what the command runs by pytest, in a spawned rank what
    # a forked one does, without the extensions what they do not change.
    "tests/acceptance/conformance/test_conformance_bad_parts.py::test_the_same_in_pytest",
    "tests/acceptance/extensions/adopt/test_everywhere.py::"
    "test_a_group_that_the_conftest_makes_at_its_import[('-n', '1'",
    "tests/acceptance/extensions/test_core_alone.py::test_unit_tests_of_the_core_pass",
    *(
        f"tests/acceptance/extensions/test_core_alone.py::test_tests_of_the_core_pass[{name}/"
        for name in (
            *("cleanup", "conformance", "devices", "ends", "habits", "hangs", "plugins", "pools"),
            *("startup", "terminal", "verdict"),
        )
    ),
    "tests/acceptance/verdict/test_verdict_modes.py::test_same_verdicts[isolated-all]",
)
"""Folders, files and tests that ``make test`` leaves out."""

WORLD_SIZE = re.compile(r"(?<=[\[-])ws(\d+)(?=[\]-])")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the exhaustive tier."""
    at_sizes: defaultdict[str, list[tuple[int, pytest.Item]]] = defaultdict(list)
    for item in items:
        place = item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else ""
        size = WORLD_SIZE.search(item.nodeid)
        if f"{place}::{item.nodeid.partition('::')[2]}".startswith(EXHAUSTIVE):
            item.add_marker("exhaustive")
        elif place.startswith("conformance/") and size is not None:
            test = item.nodeid.replace(size[0], "", 1)
            at_sizes[test].append((int(size[1]), item))
    for sized in at_sizes.values():
        smallest = min((size for size, _ in sized if size > 1), default=1)
        for size, item in sized:
            if size != smallest:
                item.add_marker("exhaustive")
