"""Habits of pytest's users that need no more of ranks than to be as in pytest."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from tests.acceptance.suite import LOADFILE, UNDER_XDIST, Finished, Suite

CONFTEST = """
    import pytest

    def pytest_configure(config):
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line("at the beginning")

    @pytest.fixture(scope="session")
    def reporter(request):
        return request.config.pluginmanager.get_plugin("terminalreporter")
"""
SUITE = """
    import __main__
    import sys

    import pytest
    from _pytest.terminal import TerminalReporter

    MAIN = getattr(__main__, "__file__", None)
    ddp = pytest.mark.ddp(world_size=2)

    @ddp
    def test_reporter(reporter, request, capsys):
        assert isinstance(reporter, TerminalReporter)
        assert request.config.get_terminal_writer() is reporter._tw
        reporter.ensure_newline()
        reporter.section("a section")
        reporter.write_sep("-", "a line")
        reporter.write_line("words", red=True)
        reporter.line("more words")
        reporter.rewrite("again")
        reporter._tw.line("of the writer")
        assert reporter.stats == {} and reporter.verbosity == 0
        said = capsys.readouterr().out
        for part in (" a section ", " a line ", "words", "more words", "again", "of the writer"):
            assert part in said

    @ddp
    def test_reporter_of_one_that_fails(reporter, ddp):
        reporter.write_line(f"written by rank {ddp.rank}")
        assert ddp.rank == 0

    @ddp
    def test_main():
        import __main__

        assert getattr(__main__, "__file__", None) == MAIN != None
        assert "pytest" in MAIN

    @ddp
    def test_properties(record_testsuite_property, record_property, ddp):
        record_testsuite_property("alike", 1)
        record_testsuite_property("rank", ddp.rank)
        record_property("own", "of the test")

    @ddp
    def test_properties_again(record_testsuite_property):
        record_testsuite_property("alike", 1)

    @ddp
    def test_wrong_name(record_testsuite_property):
        with pytest.raises(TypeError, match="name parameter needs to be a string"):
            record_testsuite_property(1, 2)

    @ddp
    def test_attribute(record_xml_attribute, ddp):
        record_xml_attribute("classname", f"of.rank{ddp.rank}")

    @pytest.fixture(scope="session")
    def late(record_testsuite_property):
        yield
        record_testsuite_property("late", "after the last test")

    @ddp
    def test_late(late):
        pass
"""


@pytest.fixture(scope="module")
def habits(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("conftest.py", CONFTEST)
    suite.write("test_suite.py", SUITE)
    return suite


@pytest.fixture(scope="module")
def run(habits: Suite) -> Finished:
    return habits.run(*LOADFILE, "--junitxml=out.xml", "--trace-config")


@pytest.fixture(scope="module")
def xml(run: Finished) -> ElementTree.Element:
    return ElementTree.parse(run.directory / "out.xml").getroot()


def test_verdicts(run: Finished) -> None:
    failed = {name for name, result in run.results.items() if result.verdict != "passed"}
    assert failed == {"test_suite.py::test_reporter_of_one_that_fails"}, run.tail()


def test_what_the_reporter_writes_is_output_of_its_rank(run: Finished) -> None:
    sections = run["test_reporter_of_one_that_fails"].sections
    assert sections["Captured stdout call [rank 1]"].strip() == "written by rank 1"


@pytest.mark.skipif(UNDER_XDIST, reason="a worker of xdist writes no file and has no properties")
def test_properties_of_the_suite_are_recorded_once(xml: ElementTree.Element) -> None:
    found = [(e.get("name"), e.get("value")) for e in xml.findall("testsuite/properties/property")]
    assert sorted(found) == [
        ("alike", "1"),
        ("late", "after the last test"),
        ("rank", "0"),
        ("rank", "1"),
    ]


@pytest.mark.skipif(UNDER_XDIST, reason="a worker of xdist writes no file and has no attributes")
def test_attributes_of_a_test(xml: ElementTree.Element) -> None:
    case = next(case for case in xml.iter("testcase") if case.get("name") == "test_attribute")
    assert case.get("classname") == "of.rank0"


@pytest.mark.skipif(UNDER_XDIST, reason="a worker of xdist writes no file and does not warn")
def test_a_family_without_properties_of_tests_is_warned_of(run: Finished) -> None:
    warning = "record_property is incompatible with junit_family 'xunit2'"
    assert len([text for text in run.warnings if warning in text]) == 1


def test_trace_config_shows_the_plugins_of_the_pytest_process_once(run: Finished) -> None:
    assert "active plugins:" in run.stdout
    names = re.findall(r"^ +([\w.-]+) +: ", run.stdout, re.MULTILINE)
    assert "terminalreporter" in names
    assert len(names) == len(set(names))


# ---------------------------------------------------------------- options of pytest's cache

STEPS = """
    import pytest
    from pathlib import Path

    pytestmark = pytest.mark.ddp(world_size=2)

    def test_one():
        pass

    def test_two(subtests, ddp):
        for number in range(2):
            with subtests.test(number=number):
                assert ddp.rank == 0 or Path(__file__).with_name("mended").exists()

    def test_three(ddp):
        assert ddp.rank == 0
"""


def test_stepwise_and_the_cache(new_suite: Callable[[], Suite]) -> None:
    suite = new_suite()
    suite.write("test_steps.py", STEPS)
    cache = ("-p", "cacheprovider", "-p", "stepwise")
    first = suite.run(*cache, "--sw", extra=())
    assert first["test_two"].verdict == "failed+failed+failed"
    assert "test_three" not in first
    (suite.directory / "mended").touch()
    second = suite.run(*cache, "--sw", extra=())
    assert [*second.results] == ["test_steps.py::test_two", "test_steps.py::test_three"]
    second.assert_outcomes(passed=1, failed=1)
    shown = suite.run(*cache, "--cache-show", extra=())
    assert "cache/stepwise contains" in shown.stdout
    assert "test_steps.py::test_three" in shown.stdout
    assert shown.returncode == 0
