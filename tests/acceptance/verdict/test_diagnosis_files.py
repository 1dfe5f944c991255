"""``--ddp-diagnosis=DIR`` and junitxml's properties, read back as a program would."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.suite import EXTRA_ARGS, UNDER_XDIST, Finished, Suite

SOURCE = """
    import ctypes
    import os

    import pytest
    import torch
    import torch.distributed as dist

    ddp2 = pytest.mark.ddp(world_size=2)


    @ddp2
    def test_deadlock(ddp):
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(4))  # waits


    @ddp2
    def test_crash(ddp):
        with ddp.phase("load"):
            if ddp.rank == 1:
                ctypes.string_at(0)  # crashes


    @ddp2
    @pytest.mark.parametrize("value", ["a/b c", "a b/c"])
    def test_fails(ddp, value):
        assert ddp.rank == 1, value  # fails


    @ddp2
    def test_leaves(ddp):
        if ddp.rank == 0:
            os._exit(0)


    @pytest.fixture
    def breaks(ddp):
        yield
        assert ddp.rank == 0


    @ddp2
    def test_fails_twice(ddp, breaks):
        dist.all_reduce(torch.ones(1), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][ddp.rank])
        assert ddp.rank == 1


    @ddp2
    @pytest.mark.xfail(reason="known")
    def test_expected(ddp):
        assert False


    @ddp2
    def test_passes(ddp, record_property):
        record_property("own", "yes")
"""
FAILING = 6


def line_of(comment: str) -> int:
    lines = SOURCE.splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {comment}"))


@pytest.fixture(scope="module")
def diagnoses(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_reported.py", SOURCE)
    return suite.run("--ddp-diagnosis=diagnoses", "--junitxml=diagnoses.xml", "-p", "no:randomly")


def records(directory: Path) -> dict[str, Any]:
    found = (json.loads(path.read_text(encoding="utf-8")) for path in directory.iterdir())
    return {record["nodeid"].partition("::")[2]: record for record in found}


@pytest.fixture
def files(diagnoses: Finished) -> dict[str, Any]:
    return records(diagnoses.directory / "diagnoses")


@pytest.fixture
def cases(diagnoses: Finished) -> dict[str, dict[str, str]]:
    """Properties of each test in the XML, by its name."""
    found = ET.parse(diagnoses.directory / "diagnoses.xml").iter("testcase")
    return {
        case.attrib["name"]: {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
        for case in found
    }


def test_each_failed_test_has_a_file(files: dict[str, Any], diagnoses: Finished) -> None:
    assert len(files) == FAILING
    assert {record["version"] for record in files.values()} == {2}
    assert all(path.suffix == ".json" for path in (diagnoses.directory / "diagnoses").iterdir())
    for record in files.values():
        assert record["world_size"] == 2
        assert record["backend"] == "gloo"
        assert [rank["rank"] for rank in record["failures"][0]["ranks"]] == [0, 1]


def test_deadlock(files: dict[str, Any]) -> None:
    (failure,) = files["test_deadlock"]["failures"]
    waits, ended = failure["ranks"]
    assert failure["kind"] == "deadlock"
    assert failure["phase"] == "call"
    assert failure["verdict"].startswith("deadlock: rank 0 waits in all_reduce #1")
    assert failure["root_cause"] == []
    assert failure["root_cause_unknown"] == "with fewer than three ranks there is no majority"
    assert (waits["state"], ended["state"]) == ("waits", "ended")
    assert waits["collective"].startswith("all_reduce #1")
    assert (waits["group"], waits["number"]) == ("0", 1)
    assert (waits["file"], waits["line"]) == ("test_reported.py", line_of("waits"))
    assert any(frame["function"] == "test_deadlock" for frame in waits["stack"])


def test_crash(files: dict[str, Any]) -> None:
    (failure,) = files["test_crash"]["failures"]
    passed, died = failure["ranks"]
    assert failure["kind"] == "crash"
    assert (failure["root_cause"], failure["root_cause_unknown"]) == ([1], None)
    assert passed["state"] == "passed"
    assert died["state"] == "died"
    assert died["phase"] == "call: load"
    assert died["signal"] == "SIGSEGV"
    assert died["exit_code"] is None
    assert (died["file"], died["line"]) == ("test_reported.py", line_of("crashes"))
    assert died["stack"][0]["function"] == "string_at"


def test_exit_code(files: dict[str, Any]) -> None:
    (failure,) = files["test_leaves"]["failures"]
    left, _ = failure["ranks"]
    assert failure["kind"] == "exit"
    assert (left["state"], left["exit_code"], left["signal"]) == ("exited", 0, None)


def test_assertion(files: dict[str, Any]) -> None:
    for value in ("a/b c", "a b/c"):
        (failure,) = files[f"test_fails[{value}]"]["failures"]
        assert failure["kind"] == "failure"
        assert failure["verdict"].startswith(f"rank 0: AssertionError: {value}")
        assert failure["line"] == line_of("fails")


def test_each_failed_phase_is_there(files: dict[str, Any]) -> None:
    call, teardown = files["test_fails_twice"]["failures"]
    assert (call["phase"], teardown["phase"]) == ("call", "teardown")
    assert (call["root_cause"], teardown["root_cause"]) == ([0], [1])
    assert any("the ranks differ in collective #1" in note for note in call["notes"])


def test_properties_of_junitxml(cases: dict[str, dict[str, str]]) -> None:
    deadlock, crash = cases["test_deadlock"], cases["test_crash"]
    assert deadlock["ddp.kind"] == "deadlock"
    assert deadlock["ddp.verdict"].startswith("deadlock: rank 0 waits in all_reduce #1")
    assert deadlock["ddp.rank0"].startswith("waits in call, all_reduce #1")
    assert deadlock["ddp.rank0"].endswith(f"test_reported.py:{line_of('waits')}")
    assert deadlock["ddp.rank1"] == "ended"
    assert crash["ddp.kind"] == "crash"
    assert crash["ddp.rank1"].startswith("died in call: load, SIGSEGV, test_reported.py:")
    assert cases["test_passes"] == {"own": "yes"}
    assert cases["test_expected"] == {}


def test_file_of_a_test_that_passes_again_is_removed(suite: Suite) -> None:
    suite.write("test_again.py", SOURCE)
    args = ("--ddp-diagnosis=diagnoses", "-k", "test_leaves")
    suite.run(*args).assert_outcomes(failed=1)
    assert list(records(suite.directory / "diagnoses")) == ["test_leaves"]
    suite.write("test_again.py", SOURCE.replace("os._exit(0)", "pass"))
    suite.run(*args).assert_outcomes(passed=1)
    assert records(suite.directory / "diagnoses") == {}


@pytest.mark.skipif(UNDER_XDIST, reason="the whole run is under xdist already")
def test_under_xdist_with_the_ini_option(suite: Suite) -> None:
    suite.write("pytest.ini", "[pytest]\nddp_diagnosis = diagnoses\n")
    suite.write("test_reported.py", SOURCE)
    suite.run("-n2", "--junitxml=diagnoses.xml", extra=EXTRA_ARGS)
    assert len(records(suite.directory / "diagnoses")) == FAILING
    text = (suite.directory / "diagnoses.xml").read_text(encoding="utf-8")
    assert text.count('name="ddp.kind"') == FAILING + 1  # a failure and an error


def test_file_instead_of_a_directory_is_refused(suite: Suite) -> None:
    suite.write("diagnoses", "")
    finished = suite.run("--ddp-diagnosis=diagnoses")
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--ddp-diagnosis=diagnoses: there is a file of this name" in finished.flat


def test_directory_that_cannot_be_made_is_a_warning(suite: Suite) -> None:
    suite.write("test_reported.py", SOURCE)
    suite.write("file", "")
    finished = suite.run("--ddp-diagnosis=file/diagnoses", "-k", "test_leaves")
    finished.assert_outcomes(failed=1)
    assert any("--ddp-diagnosis" in warning for warning in finished.warnings)
