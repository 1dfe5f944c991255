"""``--ddp-adopt=spawn``: the same programs under multiprocessing itself and served."""

from __future__ import annotations

import pytest

from tests.acceptance.extensions.adopt.spawn_programs import PROGRAMS
from tests.acceptance.extensions.adopt.spawn_targets import TARGETS
from tests.acceptance.suite import Finished, Suite


def _run(suite: Suite, *args: str, served: bool) -> Finished:
    suite.write("targets.py", TARGETS)
    suite.write("test_programs.py", PROGRAMS)
    return suite.run(*args, timeout=200, env={"SERVED": "1" if served else None})


def _passes(found: Finished) -> None:
    assert found.results, found.tail()
    failed = [name for name, result in found.results.items() if result.verdict != "passed"]
    assert not failed, found.tail()
    assert found.returncode == pytest.ExitCode.OK


def test_served_processes_are_as_spawned_ones(suite: Suite) -> None:
    found = _run(suite, "--ddp-adopt=spawn", served=True)
    _passes(found)
    assert not found.warnings


def test_the_programs_pass_with_multiprocessing_itself(suite: Suite) -> None:
    # Each interpreter that imports torch takes seconds, and there would be two dozen.
    cheap = "not spawn_ and not tensors and not training and not tcp"
    _passes(_run(suite, "-k", cheap, served=False))
