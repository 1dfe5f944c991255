"""Results that are read from hand-made result files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddp.extensions.summary.results import Failed, read

REPORT = """<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests">
<testsuite name="pytest" tests="6"><properties>
<property name="mine" value="1" /><property name="ddp.problem" value="rank 1 died" />
<property name="ddp.interrupted" value="test_x was" /></properties>
<testcase classname="tests.test_a" name="test_good" />
<testcase classname="tests.test_a.TestB" name="test_hangs[x::y/z.py]"><properties>
<property name="ddp.verdict" value="deadlock: rank 0 waits" /><property name="ddp.kind" value="d" />
</properties><failure message="deadlock: rank 0 waits">the table</failure></testcase>
<testcase classname="tests.test_a" name="test_bad"><properties>
<property name="ddp.verdict" value="rank 1: AssertionError: no&#10;and more" />
</properties><failure message="rank 1: AssertionError: no">the call</failure></testcase>
<testcase classname="tests.test_a" name="test_bad"><error message="failed on teardown">then</error>
</testcase>
<testcase classname="tests.test_a" name="test_gpu"><skipped type="pytest.skip"
 message="needs 2 GPUs, there are 0">at</skipped></testcase>
<testcase classname="tests.test_a" name="test_known"><skipped type="pytest.xfail" /></testcase>
<testcase classname="" name="tests.test_c"><error message="collection failure">E  no</error>
</testcase>
</testsuite></testsuites>"""


def _diagnosis(nodeid: str, verdict: str) -> str:
    return json.dumps({"version": 1, "nodeid": nodeid, "failures": [{"verdict": verdict}]})


COLLECTION = (
    "ImportError while importing test module\nTraceback:\nE   ModuleNotFoundError: no x\nE   then"
)


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    (tmp_path / "junit.xml").write_text(REPORT)
    return tmp_path


def test_tests_are_counted_by_outcome(reports: Path) -> None:
    results = read([reports / "junit.xml"])
    assert results.outcomes == {"passed": 1, "failed": 3, "skipped": 1, "xfailed": 1}
    assert results.skipped == {"needs 2 GPUs, there are 0": 1}
    assert results.outside == ["rank 1 died"]
    assert results.interrupted == ["test_x was"]
    assert not results.unread


def test_a_failure_has_the_verdict_on_all_ranks(reports: Path) -> None:
    assert read([reports / "junit.xml"]).failed == [
        Failed("tests.test_a.TestB::test_hangs[x::y/z.py]", "deadlock: rank 0 waits", "the table"),
        Failed("tests.test_a::test_bad", "rank 1: AssertionError: no\nand more", "the call"),
        Failed("tests.test_a::test_bad", "failed on teardown", "then"),
        Failed("tests.test_c", "no", "E  no"),
    ]


def test_a_diagnosis_adds_what_no_report_has(reports: Path) -> None:
    nodeid = "tests/test_a.py::TestB::test_hangs[x::y/z.py]"
    (reports / "known.json").write_text(_diagnosis(nodeid, "deadlock: rank 0 waits"))
    (reports / "new.json").write_text(_diagnosis("tests/test_n.py::test_n", "rank 0 died"))
    failed = read([reports]).failed
    assert [one.name for one in failed].count("tests.test_a.TestB::test_hangs[x::y/z.py]") == 1
    assert failed[-1] == Failed("tests.test_n::test_n", "rank 0 died", "")


def test_a_prefix_of_names_hides_no_test(reports: Path) -> None:
    prefixed = REPORT.replace('classname="tests', 'classname="prefix.tests')
    (reports / "junit.xml").write_text(prefixed)
    nodeid = "tests/test_a.py::TestB::test_hangs[x::y/z.py]"
    (reports / "known.json").write_text(_diagnosis(nodeid, "deadlock: rank 0 waits"))
    names = [one.name for one in read([reports]).failed]
    assert names.count("prefix.tests.test_a.TestB::test_hangs[x::y/z.py]") == 1
    assert "tests.test_a.TestB::test_hangs[x::y/z.py]" not in names


def test_a_file_that_could_not_be_collected_has_the_reason(reports: Path) -> None:
    (reports / "junit.xml").write_text(REPORT.replace("E  no", COLLECTION))
    assert read([reports]).failed[-1].verdict == "ModuleNotFoundError: no x"


def test_files_of_others_in_a_folder_are_left_alone(reports: Path) -> None:
    (reports / "coverage.xml").write_text("<coverage line-rate='1'/>")
    (reports / "trace.json").write_text('{"traceEvents": []}')
    (reports / "durations.json").write_text("[1, 2]")
    results = read([reports])
    assert not results.unread
    assert results.reports == 1


def test_several_sessions_add_up(reports: Path) -> None:
    (reports / "second").mkdir()
    (reports / "second" / "junit.xml").write_text(REPORT)
    assert read([reports]).outcomes["passed"] == 2


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("junit.xml", "<testsuites><testsuite", "unclosed token"),
        ("coverage.xml", "<coverage/>", "it begins with <coverage>"),
        ("broken.json", "{", "Expecting property name"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: str, why: str
) -> None:
    (tmp_path / name).write_text(content)
    (unread, *_) = read([tmp_path / name]).unread
    assert unread.startswith(f"{tmp_path / name}: ")
    assert why in unread


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (unread,) = read([tmp_path / "junit.xml"]).unread
    assert "No such file or directory" in unread


def test_a_session_that_did_not_end_is_reported(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(_diagnosis("test_n.py::test_n", "rank 0 died"))
    results = read([tmp_path])
    assert results.failed == [Failed("test_n::test_n", "rank 0 died", "")]
    assert results.unread == [
        f"{tmp_path}: there is no JUnit file, which pytest writes at its end",
    ]
