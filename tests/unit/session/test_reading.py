"""Reports that cross from a rank to the pytest process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from _pytest.subtests import SubtestContext, SubtestReport

from pytest_ddp.protocol.buffered_reports import is_empty
from pytest_ddp.protocol.messages import Phase, PhaseReported, SubtestReported
from pytest_ddp.session.report_reader import Reader
from tests.unit.handmade import failed, report


def sent(
    config: pytest.Config, of: pytest.TestReport, number: object, *, whole: bool = True
) -> SubtestReported:
    """A subtest as a rank sends it."""
    made = SubtestReport._new(of, SubtestContext(msg="words", kwargs={"n": number}), None, None)
    data = config.hook.pytest_report_to_serializable(config=config, report=made)
    values = dict(made.context.kwargs)
    times = made.start, made.stop, made.duration
    return SubtestReported(
        1, "words", values, json.loads(json.dumps(data)) if whole else None, *times
    )


def read(reader: Reader, message: SubtestReported) -> Any:
    made = reader.subtest(message)
    assert isinstance(made, SubtestReport)
    return made


def test_a_phase_is_a_report_of_pytests(pytestconfig: pytest.Config) -> None:
    reader, passed = Reader(pytestconfig), report(Phase.CALL)
    data = pytestconfig.hook.pytest_report_to_serializable(config=pytestconfig, report=passed)
    made = reader.phase(PhaseReported(1, data))
    assert type(made) is pytest.TestReport
    assert (made.nodeid, made.when, made.outcome) == (passed.nodeid, "call", "passed")


def test_what_no_plugin_reads_is_nothing(pytestconfig: pytest.Config) -> None:
    assert Reader(pytestconfig).phase(PhaseReported(1, {})) is None


def test_a_subtest_has_its_values_as_they_were_shown(pytestconfig: pytest.Config) -> None:
    made = read(Reader(pytestconfig), sent(pytestconfig, report(Phase.CALL), "seven"))
    assert made._sub_test_description() == "[words] (n='seven')"
    assert is_empty(made)


def test_of_further_ones_that_pass_no_more_is_kept_than_name_and_times(
    pytestconfig: pytest.Config,
) -> None:
    reader = Reader(pytestconfig)
    first = read(reader, sent(pytestconfig, report(Phase.CALL, start=5.0, duration=1.0), 1))
    bad = read(reader, sent(pytestconfig, failed("raise ValueError('wrong')"), 2))
    later = sent(pytestconfig, report(Phase.CALL, start=7.0, duration=0.5), 3, whole=False)
    third = read(reader, later)
    assert [one.context.kwargs["n"] for one in (first, bad, third)] == ["1", "2", "3"]
    assert [one.outcome for one in (first, bad, third)] == ["passed", "failed", "passed"]
    assert (first.start, third.start, third.stop, third.duration) == (5.0, 7.0, 7.5, 0.5)


def test_one_that_nothing_is_known_of_is_nothing(pytestconfig: pytest.Config) -> None:
    later = sent(pytestconfig, report(Phase.CALL), 3, whole=False)
    assert Reader(pytestconfig).subtest(later) is None
