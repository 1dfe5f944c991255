"""Warnings that are raised in ranks: reported once, and errors where the user says so."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

INI = "[pytest]\npythonpath = .\nasyncio_default_fixture_loop_scope = function\n"

WARNINGS = """
    import warnings

    import pytest

    class OwnWarning(UserWarning):
        pass

    @pytest.mark.ddp(world_size=3)
    def test_all_warn(ddp):
        warnings.warn("all ranks say this", OwnWarning)

    @pytest.mark.ddp(world_size=3)
    def test_one_warns(ddp):
        if ddp.rank == 2:
            warnings.warn("one rank says this")

    @pytest.fixture
    def warns():
        warnings.warn("a fixture says this", DeprecationWarning)

    @pytest.mark.ddp(world_size=3)
    def test_fixture_warns(warns):
        pass
"""
SAID = ["all ranks say this", "one rank says this", "a fixture says this"]


@pytest.fixture(scope="module")
def warning(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("pytest.ini", INI)
    suite.write("test_warned.py", WARNINGS)
    return suite


@pytest.fixture(scope="module")
def warned(warning: Suite) -> Finished:
    return warning.run()


@pytest.mark.parametrize("said", SAID)
def test_warning_is_reported_once(warned: Finished, said: str) -> None:
    warned.assert_outcomes(passed=3)
    assert [message for message in warned.warnings if said in message] == [said]
    summary = warned.stdout.partition("warnings summary")[2]
    assert len(re.findall(rf"Warning: {said}$", summary, re.M)) == 1
    assert "3 passed, 3 warnings" in summary


def test_warning_names_test_class_and_line(warned: Finished) -> None:
    summary = warned.stdout.partition("warnings summary")[2]
    assert re.search(
        r"test_warned\.py::test_all_warn\n.*test_warned\.py:11: OwnWarning: all ranks say this",
        summary,
    )


def test_warnings_can_be_disabled(warning: Suite) -> None:
    finished = warning.run("--disable-warnings")
    finished.assert_outcomes(passed=3)
    assert SAID[0] not in finished.stdout


# ---------------------------------------------------------------- errors

STRICT = """
    import warnings

    import pytest

    class OwnWarning(UserWarning):
        pass

    @pytest.mark.ddp(world_size=2)
    def test_warns(ddp):
        if ddp.rank == 1:
            warnings.warn("from rank 1")

    @pytest.mark.ddp(world_size=2)
    def test_warns_its_own(ddp):
        warnings.warn("own", OwnWarning)

    @pytest.mark.ddp(world_size=2)
    @pytest.mark.filterwarnings("ignore:from")
    def test_ignores(ddp):
        warnings.warn("from rank 1")

    @pytest.mark.ddp(world_size=2)
    @pytest.mark.filterwarnings("error::DeprecationWarning")
    def test_marked(ddp):
        warnings.warn("deprecated", DeprecationWarning)

    @pytest.mark.ddp(world_size=2)
    def test_silent(ddp):
        pass
"""
STRICTNESS = {
    "default": ((), {"test_marked"}),
    "error": (("-W", "error"), {"test_marked", "test_warns", "test_warns_its_own"}),
    "one class": (("-W", "error::test_strict.OwnWarning"), {"test_marked", "test_warns_its_own"}),
    "deprecations": (("-W", "error::DeprecationWarning"), {"test_marked"}),
}


@pytest.mark.parametrize("strictness", STRICTNESS)
def test_warnings_as_errors(suite: Suite, strictness: str) -> None:
    suite.write("test_strict.py", STRICT)
    suite.write("pytest.ini", INI)
    arguments, failing = STRICTNESS[strictness]
    finished = suite.run(*arguments)
    failed = {name for name in finished.results if finished.results[name].verdict != "passed"}
    assert {name.rpartition("::")[2] for name in failed} == failing, finished.tail()
    assert len(finished.results) == 5
    if "test_warns" in failing:
        text = finished["test_warns"].text
        assert "UserWarning: from rank 1" in text
        assert "rank 1 of 2 failed in call" in text
