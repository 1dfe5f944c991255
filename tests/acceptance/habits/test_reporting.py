"""A ddp test is one test to everything that selects, counts, orders and reports tests."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import pytest

from tests.acceptance.suite import EXTRA_ARGS, UNDER_XDIST, Finished, Suite

LOCAL = () if UNDER_XDIST else EXTRA_ARGS
"""Arguments for what pytest-xdist changes or does not have: order, ``-s``, ``-x``,
``--setup-show``."""

MIXED = """
    import sys

    import pytest

    ddp2 = pytest.mark.ddp(world_size=2)

    def test_plain():
        pass

    @ddp2
    def test_passes(ddp, record_property):
        record_property("flavour", "sweet")

    @ddp2
    @pytest.mark.slow
    @pytest.mark.parametrize("number", [1, 2])
    def test_many(ddp, number):
        pass

    @ddp2
    def test_fails_alike(ddp):
        print("same words")
        assert [1, 2] == [1, 3]

    @ddp2
    def test_fails_on_one(ddp):
        print(f"words of rank {ddp.rank}")
        print(f"error words of rank {ddp.rank}", file=sys.stderr)
        assert ddp.rank != 1, "only here"

    @ddp2
    def test_fails_apart(ddp):
        value = 7 + ddp.rank
        assert value == 5

    @ddp2
    def test_skips():
        pytest.skip("none")

    @ddp2
    @pytest.mark.xfail(reason="known")
    def test_xfails():
        assert False

    @pytest.fixture
    def broken():
        raise OSError("no fixture")

    @ddp2
    def test_errors(broken):
        pass

    @pytest.fixture
    def broken_after():
        yield
        raise OSError("no end")

    @ddp2
    def test_errors_after(broken_after):
        pass

    def test_plain_after():
        pass
"""
VERDICTS = {
    "test_plain": "passed",
    "test_passes": "passed",
    "test_many[1]": "passed",
    "test_many[2]": "passed",
    "test_fails_alike": "failed",
    "test_fails_on_one": "failed",
    "test_fails_apart": "failed",
    "test_skips": "skipped",
    "test_xfails": "xfailed",
    "test_errors": "error",
    "test_errors_after": "passed+error",
    "test_plain_after": "passed",
}
COUNTS = {"passed": 6, "failed": 3, "skipped": 1, "xfailed": 1, "warning": 1, "errors": 2}
"""The warning is of ``record_property``, whose ``junit_family`` is another one."""
INI = "[pytest]\nmarkers = slow: takes long\nasyncio_default_fixture_loop_scope = function\n"


@pytest.fixture(scope="module")
def mixed(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("pytest.ini", INI)
    suite.write("test_mixed.py", MIXED)
    return suite


@pytest.fixture(scope="module")
def full(mixed: Suite) -> Finished:
    xml = mixed.directory / "report.xml"
    return mixed.run("-v", "-ra", "--durations=0", "-vv", f"--junitxml={xml}")


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict(full: Finished, name: str) -> None:
    assert full[name].verdict == VERDICTS[name], full[name].text


@pytest.mark.parametrize("name", VERDICTS)
def test_one_report_for_each_phase(full: Finished, name: str) -> None:
    result = full[name]
    expected = ["setup", "call", "teardown"]
    if result.phase("setup").outcome == "failed":
        expected.remove("call")
    assert [report.when for report in result.reports] == expected


def test_summary_counts(full: Finished) -> None:
    line = full.stdout.splitlines()[-1]
    assert {word: int(count) for count, word in re.findall(r"(\d+) ([a-z]+)", line)} == COUNTS


@pytest.mark.parametrize("name", VERDICTS)
def test_verbose_line(full: Finished, name: str) -> None:
    word = {"error": "ERROR", "xfailed": "XFAIL", "passed+error": "PASSED"}.get(
        VERDICTS[name], VERDICTS[name].upper()
    )
    lines = [line for line in full.stdout.splitlines() if f"::{name} " in line and "%]" in line]
    assert sum(word in line for line in lines) == 1, lines


def test_progress_ends_at_100_percent(full: Finished) -> None:
    shown = [int(percent) for percent in re.findall(r"\[ *(\d+)%\]", full.stdout)]
    assert shown[-1] == 100
    assert shown == sorted(shown)


def test_durations(full: Finished) -> None:
    section = full.stdout.partition("slowest durations")[2].partition("short test summary")[0]
    for phase in ("call", "setup", "teardown"):
        lines = re.findall(rf"[\d.]+s {phase} +test_mixed\.py::test_passes$", section, re.M)
        assert len(lines) == 1, section


# ---------------------------------------------------------------- failure texts


def test_identical_failures_are_shown_once(full: Finished) -> None:
    text = full["test_fails_alike"].text
    assert text.count("At index 1 diff: 2 != 3") == 1
    assert "ranks 0-1" in text
    assert full["test_fails_alike"].phase("call").line == line_of("assert [1, 2] == [1, 3]")
    assert "".join(full["test_fails_alike"].sections.values()).count("same words") == 1


def test_differing_failures_are_all_shown(full: Finished) -> None:
    text = full["test_fails_apart"].text
    assert "assert 7 == 5" in text
    assert "assert 8 == 5" in text


def test_failure_of_one_rank(full: Finished) -> None:
    result = full["test_fails_on_one"]
    assert "only here" in result.text
    assert "rank 1 of 2 failed in call" in result.text
    assert result.phase("call").line == line_of('assert ddp.rank != 1, "only here"')
    captured = "\n".join(f"{title}\n{text}" for title, text in result.sections.items())
    assert captured.count("error words of rank 1") == 1
    assert re.search(r"stdout.*\n(?!.*stderr).*words of rank 1", captured)


def test_short_summary_names_the_rank(full: Finished) -> None:
    summary = full.stdout.partition("short test summary info")[2]
    assert re.search(r"FAILED test_mixed\.py::test_fails_on_one - rank 1: .*only here", summary)
    assert summary.count("FAILED") == 3
    assert len(re.findall("^ERROR ", summary, re.M)) == 2


def line_of(code: str) -> int:
    (number,) = (n for n, line in enumerate(MIXED.splitlines(), 1) if code in line)
    return number


# ---------------------------------------------------------------- junitxml


@pytest.fixture(scope="module")
def cases(full: Finished) -> dict[str, ElementTree.Element]:
    root = ElementTree.parse(full.directory / "report.xml").getroot()
    found = root.findall("./testsuite/testcase")
    names = [case.attrib["name"] for case in found]
    assert len(names) == len(set(names)) == len(VERDICTS), names
    (suite,) = root.findall("./testsuite")
    counts = {name: int(suite.attrib[name]) for name in ("tests", "errors", "failures", "skipped")}
    assert counts == {"tests": len(VERDICTS), "errors": 2, "failures": 3, "skipped": 2}
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize("name", VERDICTS)
def test_junit_testcase(cases: dict[str, ElementTree.Element], name: str) -> None:
    tags = {"failed": ["failure"], "skipped": ["skipped"], "xfailed": ["skipped"]}
    expected = tags.get(VERDICTS[name], ["error"] if "error" in VERDICTS[name] else [])
    children = [child.tag for child in cases[name] if child.tag in ("failure", "skipped", "error")]
    assert children == expected
    assert cases[name].attrib["classname"] == "test_mixed"
    assert float(cases[name].attrib["time"]) >= 0


def test_junit_text(cases: dict[str, ElementTree.Element]) -> None:
    (failure,) = cases["test_fails_on_one"].findall("failure")
    assert failure.attrib["message"].startswith("rank 1")
    assert "only here" in (failure.text or "")


def test_junit_property(cases: dict[str, ElementTree.Element]) -> None:
    properties = cases["test_passes"].findall("./properties/property")
    assert [(p.attrib["name"], p.attrib["value"]) for p in properties] == [("flavour", "sweet")]


# ---------------------------------------------------------------- selection and order

ALL_DDP = set(VERDICTS) - {"test_plain", "test_plain_after"}
MANY = {"test_many[1]", "test_many[2]"}
SELECTIONS = {
    "-k": (("-k", "many or plain"), {*MANY, "test_plain", "test_plain_after"}),
    "-k one": (("-k", "test_passes"), {"test_passes"}),
    "-m": (("-m", "slow"), MANY),
    "-m ddp": (("-m", "ddp"), ALL_DDP),
    "-m not ddp": (("-m", "not ddp"), {"test_plain", "test_plain_after"}),
    "node ids": (
        ("test_mixed.py::test_many[2]", "test_mixed.py::test_plain", "test_mixed.py::test_skips"),
        {"test_many[2]", "test_plain", "test_skips"},
    ),
    "deselect": (
        ("-k", "plain or passes", "--deselect=test_mixed.py::test_passes"),
        {"test_plain", "test_plain_after"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("selection", SELECTIONS)
def test_selection(mixed: Suite, selection: str) -> None:
    arguments, expected = SELECTIONS[selection]
    finished = mixed.run(*arguments)
    assert {name.rpartition("::")[2] for name in finished.results} == expected
    for name in expected:
        assert finished[name].verdict == VERDICTS[name]


def test_collect_only(mixed: Suite) -> None:
    finished = mixed.run("--collect-only", "-q", extra=LOCAL)
    listed = re.findall(r"^test_mixed\.py::(\S+)$", finished.stdout, re.M)
    assert listed == list(VERDICTS)
    assert finished.results == {}
    assert finished.returncode == pytest.ExitCode.OK


@pytest.mark.parametrize(
    ("argument", "failures"),
    [("-x", 1), ("--maxfail=1", 1), ("--maxfail=2", 2), ("--maxfail=4", 4)],
)
def test_stops_after_failures(mixed: Suite, argument: str, failures: int) -> None:
    finished = mixed.run(argument, extra=LOCAL)
    bad = ["test_fails_alike", "test_fails_on_one", "test_fails_apart", "test_errors"]
    ran = [name.rpartition("::")[2] for name in finished.results]
    assert ran == list(VERDICTS)[: list(VERDICTS).index(bad[failures - 1]) + 1]
    assert f"stopping after {failures} failures" in finished.stdout


@pytest.fixture(scope="module")
def cached(new_suite: Callable[[], Suite]) -> Suite:
    """A suite of which pytest knows what failed last."""
    suite = new_suite()
    suite.write("pytest.ini", INI)
    suite.write("test_mixed.py", MIXED)
    suite.run("-p", "cacheprovider")
    return suite


BAD = [
    "test_fails_alike",
    "test_fails_on_one",
    "test_fails_apart",
    "test_errors",
    "test_errors_after",
]


def test_last_failed(cached: Suite) -> None:
    finished = cached.run("-p", "cacheprovider", "--lf")
    assert sorted(name.rpartition("::")[2] for name in finished.results) == sorted(BAD)


def test_failed_first(cached: Suite) -> None:
    finished = cached.run("-p", "cacheprovider", "--ff", extra=LOCAL)
    ran = [name.rpartition("::")[2] for name in finished.results]
    assert ran == BAD + [name for name in VERDICTS if name not in BAD]


def test_stepwise(cached: Suite) -> None:
    first = cached.run("-p", "cacheprovider", "-p", "stepwise", "--sw", extra=LOCAL)
    assert [*first.results][-1].endswith("test_fails_alike")
    second = cached.run("-p", "cacheprovider", "-p", "stepwise", "--sw", "--sw-skip", extra=LOCAL)
    ran = [name.rpartition("::")[2] for name in second.results]
    assert ran == ["test_fails_alike", "test_fails_on_one"]


# ---------------------------------------------------------------- output

LOUD = """
    import os

    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_loud(ddp):
        print(f"python words of rank {ddp.rank}")
        os.write(2, b"low words of rank %d\\\\n" % ddp.rank)

    @pytest.fixture(scope="module")
    def wide():
        yield

    @pytest.fixture
    def narrow(wide):
        yield

    @pytest.mark.ddp(world_size=2)
    def test_with_fixtures(narrow):
        pass
"""


@pytest.fixture(scope="module")
def loud(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("pytest.ini", INI)
    suite.write("test_loud.py", LOUD)
    return suite


def test_no_capture(loud: Suite) -> None:
    finished = loud.run("-s", extra=LOCAL)
    finished.assert_outcomes(passed=2)
    for rank in (0, 1):
        assert finished.output.count(f"python words of rank {rank}") == 1
        assert finished.output.count(f"low words of rank {rank}") == 1


def test_captured_output_of_a_passed_test_is_not_shown(loud: Suite) -> None:
    finished = loud.run("-qq", extra=LOCAL)
    finished.assert_outcomes(passed=2)
    assert finished.stdout.split() == ["..", "[100%]"]
    assert finished.stderr == ""


def test_captured_output_of_passed_tests(loud: Suite) -> None:
    finished = loud.run("-rA", "--ddp-output=all")
    assert finished.stdout.count("python words of rank 0") == 1
    assert finished.stdout.count("python words of rank 1") == 1


def test_setup_show(loud: Suite) -> None:
    """The fixtures of all ranks, in pytest's own words, once when ranks agree."""
    finished = loud.run("--setup-show", extra=LOCAL)
    lines = [line.strip() for line in finished.stdout.splitlines()]
    for words in ("SETUP    M wide", "TEARDOWN M wide"):
        assert sum(line.startswith(words) for line in lines) == 1, finished.stdout
    assert sum(line.startswith("SETUP    F narrow (fixtures used: wide)") for line in lines) == 1
    assert sum(line.startswith("TEARDOWN F narrow") for line in lines) == 1
    assert re.search(
        r"test_loud\.py::test_with_fixtures \(fixtures used: .*narrow, wide\)", finished.stdout
    )
