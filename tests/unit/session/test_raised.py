"""Failures of ranks as exceptions in the pytest process."""

from __future__ import annotations

import json
import signal

import pytest

from pytest_ddp.outcome.outcome import Hang, HangKind, RankOutcome
from pytest_ddp.session.synthetic_reports import exception_of
from pytest_ddp.settings.options import Output
from pytest_ddp.verdict.merge import judge
from tests.unit import handmade


def _raised(*ranks: RankOutcome, hang: Hang | None = None) -> BaseException:
    merged = judge(handmade.run(*ranks, hang=hang), Output.FAILED)
    (diagnosis,) = merged.diagnoses
    (report,) = (report for report in merged.reports if report.failed)
    return exception_of(report, diagnosis)


def _of(source: str) -> BaseException:
    call = handmade.failed(source)
    return _raised(handmade.passing(0), handmade.passing(1, call))


@pytest.mark.parametrize(
    ("source", "kind", "text"),
    [
        ("raise ValueError('no such value: 3')", ValueError, "ValueError: no such value: 3"),
        ("raise KeyError", KeyError, "KeyError: "),
        ("assert x == 3, 'why'", AssertionError, "AssertionError: why"),
        # The words of a rewritten assertion, of which pytest does not repeat the type.
        ("raise AssertionError('assert 1 == 3')", AssertionError, "AssertionError: assert 1 == 3"),
        ("import json; json.loads('')", json.JSONDecodeError, "JSONDecodeError: Expecting value"),
        ("raise OSError('two\\nlines')", OSError, "OSError: two\nlines"),
    ],
)
def test_type_and_text_are_those_of_the_rank(
    source: str, kind: type[BaseException], text: str
) -> None:
    error = _of(source)
    assert isinstance(error, kind)
    assert f"{type(error).__name__}: {error}".startswith(text)


def test_a_type_that_is_unknown_here_keeps_its_name() -> None:
    error = _of("import types; raise type('Odd', (Exception,), {'__module__': 'far.away'})('!')")
    assert (type(error).__name__, str(error)) == ("Odd", "!")


def test_a_group_of_exceptions_keeps_its_name() -> None:
    error = _of("raise ExceptionGroup('many', [OSError('one'), OSError('two')])")
    assert type(error).__name__ == "ExceptionGroup"
    assert str(error).startswith("many (2 sub-exceptions)")


def test_a_crash_is_named_by_its_ending() -> None:
    error = _raised(handmade.passing(0), handmade.dead(1, -signal.SIGSEGV))
    assert type(error).__name__ == "Crash"
    assert str(error).startswith("rank 1 died of SIGSEGV")


@pytest.mark.parametrize(
    ("kind", "name"), [(HangKind.FOR_EACH_OTHER, "Deadlock"), (HangKind.MISMATCH, "Mismatch")]
)
def test_a_hang_is_named_by_its_kind_which_its_text_leaves_out(kind: HangKind, name: str) -> None:
    hang = Hang(kind, "rank 0 waits in barrier #1, rank 1 in recv #1", (), ())
    error = _raised(handmade.stopped(0), handmade.stopped(1), hang=hang)
    assert (type(error).__name__, str(error)) == (name, hang.what)


def test_a_disagreement_is_one() -> None:
    error = _raised(handmade.passing(0), handmade.passing(1, handmade.skipped("why")))
    assert type(error).__name__ == "Disagreement"


def test_a_failure_without_a_diagnosis_is_read_from_its_report() -> None:
    assert isinstance(exception_of(handmade.failed("raise OSError('x')"), None), OSError)
