"""Failing subtests of one phase, as one report."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.subtests import SubtestContext, SubtestReport

from pytest_ddp.verdict import subtests
from pytest_ddp.verdict.entries import bare_text

NODEID = "test_a.py::test_it"


def report(error: BaseException | None, *, trace: bool = True) -> pytest.TestReport:
    """Of the phase ``call`` of a test that raised ``error``."""
    longrepr: object = None
    if error is not None:
        longrepr = pytest.ExceptionInfo.from_exception(error).getrepr() if trace else str(error)
    return pytest.TestReport(
        nodeid=NODEID,
        location=("test_a.py", 6, "test_it"),
        keywords={},
        outcome="passed" if error is None else "failed",
        longrepr=longrepr,  # type: ignore[arg-type]
        when="call",
        sections=[("Captured stdout call", f"before {error}")],
    )


def subtest(
    error: BaseException | None, message: str | None = None, *, trace: bool = True, **values: Any
) -> SubtestReport:
    context = SubtestContext(msg=message, kwargs=values)
    made = SubtestReport._new(report(error, trace=trace), context, None, None)
    return SubtestReport._from_json(made._to_json())  # as a rank sends it


def raised(text: str) -> AssertionError:
    try:
        raise AssertionError(text)
    except AssertionError as error:
        return error


def failed(error: str, message: str | None = None, **values: Any) -> pytest.TestReport:
    made = subtests.of_phase(subtest(raised(error), message, **values))
    assert made is not None
    return made


def test_a_subtest_that_passes_says_nothing() -> None:
    assert subtests.of_phase(subtest(None)) is None


@pytest.mark.parametrize(
    ("message", "values", "name"),
    [
        (None, {"i": 1, "j": 2}, "subtest (i=1, j=2)"),
        ("sizes", {}, "subtest [sizes]"),
        ("sizes", {"i": 1}, "subtest [sizes] (i=1)"),
        (None, {}, "subtest (<subtest>)"),
        (None, {"text": "word"}, "subtest (text='word')"),
    ],
)
def test_a_failure_begins_with_the_name_of_its_subtest(
    message: str | None, values: dict[str, Any], name: str
) -> None:
    made = failed("wrong", message, **values)
    assert type(made) is pytest.TestReport
    assert made.longreprtext.startswith(f"{name}\n")
    assert "AssertionError: wrong" in made.longreprtext


def test_all_that_fail_are_shown_and_the_first_is_in_front() -> None:
    known = failed("first", i=1)
    subtests.join(known, failed("second", i=2))
    subtests.join(known, failed("third", i=3))
    places = [known.longreprtext.index(f"AssertionError: {n}") for n in ("first", "second")]
    assert places == sorted(places)
    assert known.longreprtext.index("subtest (i=3)") > places[1]
    assert known.longrepr.reprcrash.message == "AssertionError: first"  # type: ignore[union-attr]


def test_pytests_own_summary_adds_nothing_but_its_output() -> None:
    known = failed("first", i=1)
    text = known.longreprtext
    subtests.join(known, report(AssertionError("contains 2 failed subtests"), trace=False))
    assert known.longreprtext == text
    assert [output for _, output in known.sections] == [
        "before first",
        "before contains 2 failed subtests",
    ]


def test_a_failure_of_the_test_itself_is_added() -> None:
    known = failed("first", i=1)
    subtests.join(known, report(raised("after the subtests")))
    assert "AssertionError: after the subtests" in known.longreprtext


def test_a_failure_without_a_traceback_keeps_its_text() -> None:
    made = subtests.of_phase(subtest(AssertionError("only\nwords"), trace=False, i=4))
    assert made is not None
    assert made.longreprtext.startswith("subtest (i=4)\nonly\nwords")
    assert bare_text(made.longrepr) is None
    assert made.longrepr.reprcrash.message == "only"  # type: ignore[union-attr]
