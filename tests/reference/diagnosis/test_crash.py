"""The crash report names rank, signal, phase, line and operator, whatever a rank dies of."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ddp_reference.diagnosis import CrashReport, RankEnd, crash_report, launch
from ddp_reference.diagnosis.report import cause_of, look

from pytest_ddp.protocol.rank_status import CodeLine
from pytest_ddp.protocol.status_page import PHASE, StatusPage, note_of
from tests.warm import interpreter

pytestmark = pytest.mark.usefixtures("warm_ranks")
HERE = Path(__file__).parent
SCRIPT = HERE / "crashing.py"
SEGV = -signal.SIGSEGV


@pytest.mark.parametrize(
    ("deed", "phase"),
    [
        ("construction", "construction of Model"),
        ("wrap", "DDP construction"),
        ("compile", "compilation"),
        ("forward", "first forward of DDP"),
    ],
)
def test_a_segmentation_fault_is_located(deed: str, phase: str) -> None:
    report = crash_report([str(SCRIPT), deed], timeout=90)
    assert report.cause is not None
    assert (report.cause.rank, report.cause.returncode) == (1, SEGV), str(report)
    assert report.cause.phase == phase
    assert report.cause.place.endswith(f"crashing.py:{line_of('ctypes.string_at')} in die")
    assert f"rank 1 died of SIGSEGV\n  in phase  {phase}\n  at  " in str(report)


def test_a_signal_is_the_cause_of_what_the_peers_raised_before_its_end_was_seen() -> None:
    raised = RankEnd(0, 1, finished=False, error="RuntimeError: the store does not answer")
    closed = RankEnd(2, 1, finished=False, error="RuntimeError: Connection closed by peer")
    died = RankEnd(1, SEGV, finished=False)
    aborted = RankEnd(1, -signal.SIGABRT, finished=False)
    stopped = RankEnd(1, -signal.SIGTERM, finished=False, stopped=True)
    assert cause_of([raised, died]) is died
    assert cause_of([closed, raised, died]) is died
    assert cause_of([closed, aborted]) is aborted
    assert cause_of([raised, aborted]) is raised
    assert cause_of([raised, stopped]) is raised
    assert cause_of([closed, stopped]) is closed
    assert cause_of([]) is None


def line_of(text: str) -> int:
    lines = SCRIPT.read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if text in line)


def test_an_exception_is_the_cause_and_the_broken_connection_is_not() -> None:
    report = crash_report([str(SCRIPT), "raises"], timeout=90)
    assert report.cause is not None
    assert (report.cause.rank, report.cause.error) == (1, "LookupError: no such shard")
    assert report.cause.place.endswith(f"crashing.py:{line_of('raise LookupError')} in main")
    assert not report.ranks[0].well
    assert "LookupError: no such shard" in report.stderr


def test_exit_code_0_before_the_end_is_no_success() -> None:
    report = crash_report([str(SCRIPT), "silent"], timeout=90)
    assert str(report).startswith("rank 1 left with exit code 0 before its end\n")
    assert report.cause is not None
    assert report.cause.place.endswith(f"crashing.py:{line_of('os._exit')} in main")


def test_a_run_that_ends_well_has_no_cause() -> None:
    report = crash_report([str(SCRIPT), "nothing"], timeout=90)
    assert str(report) == "all 2 ranks finished"


def test_a_rank_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    waits = "import threading; threading.Event().wait()"
    process = subprocess.Popen([sys.executable, "-c", waits], start_new_session=True)
    assert launch._watch([process], tmp_path, timeout=0.2) == ([], {0})
    launch._end(process)
    assert process.returncode == -signal.SIGTERM


def test_a_rank_that_ends_well_when_it_is_stopped_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "ENDING", 60.0)  # on a busy machine
    report = crash_report([str(SCRIPT), "aborts"], timeout=90)
    assert str(report).startswith("rank 1 died of SIGABRT\n")
    assert "the others:\n  rank 0 was stopped" in str(report)
    assert report.ranks[0].returncode == 0


STACK = """\
Current thread 0x01 (most recent call first):
  File "/home/me/train.py", line 7 in f
"""


def test_a_rank_that_was_stopped_shows_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "rank-0.fault").write_text(STACK)
    end = look(tmp_path, 0, -signal.SIGTERM, stopped=True)
    assert (str(end), end.place) == ("rank 0 was stopped", "/home/me/train.py:7 in f")


def test_the_command_prints_the_crash_and_exits_with_1() -> None:
    command = ["-m", "ddp_reference.diagnosis", "crash", "--ranks", "2", "--"]
    done = interpreter.run([*command, str(SCRIPT), "forward"], timeout=90)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("rank 1 died of SIGSEGV\n  in phase  first forward of DDP\n")


NATIVE = """\
Segfault encountered
SIGSEGV(11), PID: 7, Thread 7:
frame #0: c10::FatalSignalHandler::stacktraceSignalHandler(bool) + 0x4 (0x7f in libc10.so)
frame #1: c10::FatalSignalHandler::fatalSignalHandler(int) + 0x4 (0x7f in libc10.so)
frame #2: <unknown function> + 0x4 (0x7f in /lib/libc.so.6)
frame #3: at::_ops::add_Tensor::call(at::Tensor const&) + 0x4 (0x7f in libtorch_cpu.so)
"""


def test_the_operator_comes_from_the_native_stack(tmp_path: Path) -> None:
    (tmp_path / "rank-1.err").write_text(NATIVE)
    end = look(tmp_path, 1, SEGV, stopped=False)
    assert end.operator == "at::_ops::add_Tensor::call"
    assert "inside    at::_ops::add_Tensor::call" in "\n".join(end.details())


def test_words_for_each_end() -> None:
    say: Callable[..., str] = lambda *args, **kw: RankEnd(0, *args, **kw).how()  # noqa: E731
    assert say(0, finished=True) == "finished"
    assert say(-99, finished=False) == "died of signal 99"
    assert say(3, finished=False) == "left with exit code 3"
    assert say(-9, finished=False, stopped=True) == "was stopped"
    assert say(0, finished=True, stopped=True) == "was stopped"
    assert str(CrashReport((), None)) == "all 0 ranks finished"


@pytest.mark.parametrize(("line", "phase"), [(7, "construction of Model"), (6, "")])
def test_a_phase_is_reported_while_its_line_is_executed(
    tmp_path: Path, line: int, phase: str
) -> None:
    page = StatusPage(str(tmp_path / "rank-0.phase"))
    site = CodeLine("/home/me/train.py", line, "f")
    page.write(PHASE, note_of(["construction of Model"], site, 1))
    (tmp_path / "rank-0.fault").write_text(STACK)
    assert look(tmp_path, 0, SEGV, stopped=False).phase == phase
