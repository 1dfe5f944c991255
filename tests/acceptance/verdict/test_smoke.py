"""Every kind of verdict, each once and in one run: what ``make quick`` looks at.

The tests are those that users prove a machine with.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_ddp.extensions.doctor.selftest.cases import SelftestCase, expected_of
from pytest_ddp.extensions.doctor.selftest.inner_session import SUITES
from pytest_ddp.extensions.doctor.selftest.judge import exit_code
from tests.acceptance.suite import LOADFILE, Finished, Suite

FILE = "test_verdicts.py"
EXPECTED = expected_of(SelftestCase("smoke", "", (FILE,), "gloo", 2))
SIZE = "--ddp-world-size=2"


def write(suite: Suite) -> None:
    suite.write(FILE, (SUITES / FILE).read_text())


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    write(suite)
    return suite.run(*LOADFILE, SIZE, timeout=120)


@pytest.mark.parametrize("name", EXPECTED)
def test_verdict(run: Finished, name: str) -> None:
    verdict, text = EXPECTED[name]
    assert run[name].verdict == verdict
    assert text in run[name].text


def test_nothing_else_was_run(run: Finished) -> None:
    assert set(run.results) == {f"{FILE}::{name}" for name in EXPECTED}
    assert run.returncode == exit_code(EXPECTED)
