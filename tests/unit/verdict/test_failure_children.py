"""The texts of deaths elsewhere than in the test's own thread: other threads, forked processes."""

from __future__ import annotations

import ctypes
import multiprocessing.process
import signal

import pytest

from pytest_ddp.outcome import stack_dumps
from pytest_ddp.protocol.messages import Phase
from pytest_ddp.verdict.rank_failure import RankFailure, is_out_of_memory
from tests.unit import handmade as made
from tests.unit.handmade import MACHINERY, SITE, TEST_FILE, dead, failure, text, verdict

SEGFAULT = "Fatal Python error: Segmentation fault"
STRING_AT = (str(ctypes.__file__), 519, "string_at")
IN_WORKER = made.stacks(
    STRING_AT,
    (TEST_FILE, 61, "__getitem__"),
    (f"{SITE}/torch/utils/data/_utils/worker.py", 374, "_worker_loop"),
    (str(multiprocessing.process.__file__), 314, "_bootstrap"),
    (f"{SITE}/torch/utils/data/dataloader.py", 505, "__iter__"),
    (TEST_FILE, 66, "test_made"),
    title=SEGFAULT,
)
WORKER_GONE = made.failed(
    "raise RuntimeError('DataLoader worker (pid 7) is killed by signal: Segmentation fault.')"
)
OOM = "killed a process on this machine"


def beside(*frames: tuple[str, int, str]) -> str:
    """A fatal signal in a thread with these frames, while the test waits in line 33."""
    thread = made.stacks(*frames, title=SEGFAULT, machinery=False)
    return thread + made.stacks((TEST_FILE, 33, "test_made"), header="Thread 0x1")


def test_thread_without_code_of_the_test_is_shown_with_the_place_of_the_test() -> None:
    report = failure(made.passing(0), dead(stacks=beside(STRING_AT)))
    shown = report.longreprtext
    assert verdict(report) == "rank 1 died of SIGSEGV in call"
    assert " ".join(shown.split()).startswith(
        "rank 1 died of SIGSEGV in call, in a thread beside the test, begun at "
        "tests/test_made.py:33 in test_made"
    )
    assert "rank 1 in call, the test itself:\n> tests/test_made.py:33 in test_made" in shown
    assert made.place(report) == (TEST_FILE, 33)


def test_thread_with_code_of_the_test_is_shown_with_its_own_place() -> None:
    shown = text(made.passing(0), dead(stacks=beside(STRING_AT, (TEST_FILE, 70, "crash"))))
    assert shown.startswith("rank 1 died of SIGSEGV in call, at tests/test_made.py:70 in crash\n")
    assert "in a thread beside the test, most recent call first" in shown


# ------------------------------------------------------------------ forked processes


def test_worker_s_own_stack_stands_for_the_loader_s_traceback() -> None:
    report = failure(made.passing(0), made.passing(1, WORKER_GONE, children=IN_WORKER))
    shown = report.longreprtext
    assert verdict(report) == "rank 1: a process that it forked died of SIGSEGV in call"
    assert "at tests/test_made.py:61 in __getitem__" in " ".join(shown.split("\n\n")[0].split())
    assert "> tests/test_made.py:61 in __getitem__\n" in shown
    assert "dataloader.py" not in shown
    assert "rank 1 in call: RuntimeError: DataLoader worker (pid 7) is killed" in shown


def test_rank_that_its_worker_took_along() -> None:
    """The loader raises from a signal handler, which may be anywhere, in pytest too."""
    last = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nRuntimeError: gone\n'
    report = failure(made.passing(0), dead(returncode=1, stacks=last, children=IN_WORKER))
    assert verdict(report) == "rank 1: a process that it forked died of SIGSEGV in call"
    assert "an exception came out of pytest itself: RuntimeError: gone" in report.longreprtext


def test_failure_beside_a_dead_child_keeps_its_own_words() -> None:
    report = failure(made.passing(0), made.passing(1, made.ASSERTED, children=IN_WORKER))
    assert verdict(report) == "rank 1: assert 3 == 4"
    assert "a process that rank 1 forked died of SIGSEGV" in report.longreprtext


def test_worker_that_left_no_stack_is_reported_by_the_loader() -> None:
    report = failure(made.passing(0), made.passing(1, WORKER_GONE))
    assert verdict(report).startswith("rank 1: RuntimeError: DataLoader worker (pid 7)")


PIPE_BROKE = made.failed(
    "import multiprocessing\nours, theirs = multiprocessing.Pipe()\ntheirs.close()\nours.recv()"
)


def test_pipe_to_a_dead_worker_is_not_a_broken_connection_to_a_rank() -> None:
    """A loader that fetches a tensor's descriptor in the moment of the death."""
    report = failure(made.stopped(0), made.passing(1, PIPE_BROKE, children=IN_WORKER))
    assert verdict(report) == "rank 1: a process that it forked died of SIGSEGV in call"
    assert "at tests/test_made.py:61 in __getitem__" in " ".join(report.longreprtext.split())
    assert verdict(failure(made.stopped(0), made.passing(1, PIPE_BROKE))) == "rank 1: EOFError"


# ------------------------------------------------------------------ long stacks


def way(*calls: str) -> tuple[list[str], list[str]]:
    """The lines of calls in libraries, and those that are shown between two lines of a test."""
    frames = [(TEST_FILE, 14, "helper"), *map(in_library, calls), (TEST_FILE, 30, "test_made")]
    shown = text(dead(stacks=made.stacks(*frames))).splitlines()
    begin = shown.index("> tests/test_made.py:14 in helper")
    end = shown.index("  tests/test_made.py:30 in test_made")
    return [f"  {call}" for call in calls], shown[begin + 1 : end]


def in_library(call: str) -> tuple[str, int, str]:
    place, _, function = call.partition(" in ")
    file, _, line = place.partition(":")
    return file if file.startswith("<") else f"{SITE}/{file}", int(line), function


def test_long_way_through_libraries_shows_the_public_function_of_each_file() -> None:
    all_of_it, shown = way(
        "torch/distributed.py:90 in _object",
        "torch/distributed.py:80 in gather",
        "torch/distributed.py:70 in wrapper",
        "trainer/metrics.py:60 in <listcomp>",
        "trainer/metrics.py:60 in compute",
        "trainer/metrics.py:50 in wrapped",
        "trainer/metrics.py:40 in metrics",
        "trainer/calls.py:30 in _guarded",
        "trainer/loop.py:20 in on_end",
        "trainer/loop.py:10 in run",
        "trainer/trainer.py:5 in _run",
        "trainer/calls.py:30 in _guarded",
        "trainer/trainer.py:1 in fit",
    )
    # Two lines are left, and go to the calls nearest to the last one.
    kept = [all_of_it[number] for number in (0, 1, 2, 3, 4, 8, 12)]
    assert shown == [*kept, "  ... 6 more calls in libraries, between these"]


@pytest.mark.parametrize("file", ["part.py", "part{}.py"], ids=["one file", "many"])
def test_long_way_through_libraries_shows_no_more_than_seven_lines(file: str) -> None:
    all_of_it, shown = way(*(f"library/{file.format(n)}:{n} in f" for n in range(20)))
    kept = [*all_of_it[:6], all_of_it[-1]]
    assert shown == [*kept, "  ... 13 more calls in libraries, between these"]


def test_long_chain_of_imports_shows_the_modules() -> None:
    importer = "<frozen importlib._bootstrap>:1176 in find"
    chain = [(f"library/part{n}.py:1 in <module>", importer, importer) for n in range(5)]
    all_of_it, shown = way(*(call for part in chain for call in part))
    repeated = "  ... and 1 more call from there"
    assert shown == [
        *all_of_it[0:2],
        repeated,
        *(all_of_it[number] for number in (3, 6, 9, 12, 14)),
        repeated,
        "  ... 6 more calls in libraries, between these",
    ]


def test_short_way_through_libraries_is_whole() -> None:
    all_of_it, shown = way(*(f"library/part.py:{number} in _f" for number in range(8)))
    assert shown == all_of_it


def test_stack_ends_where_the_process_began() -> None:
    (dump,) = stack_dumps.parse_stacks(IN_WORKER)
    assert [frame.line for frame in stack_dumps.trim(dump.stacks[0].frames)] == [519, 61, 374]
    assert len(dump.stacks[0].frames) == 6 + len(MACHINERY)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("", ""),
        ("Traceback (most recent call last):\n  File\nValueError: a\nb\n", "ValueError: a"),
        ("ValueError: not of a traceback\n", ""),
        (
            "Traceback (most recent call last):\n  x\nKeyError: 1\n\nDuring it\n\n"
            "Traceback (most recent call last):\n  y\nOSError: 2\n",
            "OSError: 2",
        ),
    ],
)
def test_last_exception(text: str, last: str) -> None:
    assert stack_dumps.last_exception(text) == last


def test_line_of_a_traceback_that_is_the_users() -> None:
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{pytest.__file__}", line 3, in first\n    code\n'
        '  File "/home/me/test_it.py", line 4, in __repr__\n    raise SystemExit(5)\n'
        f'  File "{pytest.__file__}", line 5, in last\n    code\n'
        "SystemExit: 5\n"
    )
    assert stack_dumps.raised_at(text) == stack_dumps.Frame("/home/me/test_it.py", 4, "__repr__")
    assert stack_dumps.raised_at(text.replace("/home/me/test_it.py", pytest.__file__)) is None
    assert stack_dumps.raised_at("") is None


# ------------------------------------------------------------------ out of memory


@pytest.mark.parametrize(
    ("raised", "oom", "is_memory"),
    [
        ("raise MemoryError", "", True),
        ("raise RuntimeError('DefaultCPUAllocator: cannot allocate memory')", "", True),
        ("raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')", "", True),
        ("raise RuntimeError('DataLoader worker (pid 7) is killed by signal: Killed')", OOM, True),
        ("raise RuntimeError('DataLoader worker (pid 7) is killed by signal: Killed')", "", False),
        ("assert 'out of memory' == ''", OOM, False),
        ("raise ValueError('no such file')", OOM, False),
    ],
)
def test_exceptions_for_want_of_memory(raised: str, oom: str, is_memory: bool) -> None:
    rank = made.passing(1, made.failed(raised))
    trouble = RankFailure(rank, Phase.CALL, rank.reports[Phase.CALL].report)
    assert is_out_of_memory(trouble, oom) == is_memory


@pytest.mark.parametrize(
    ("returncode", "oom", "is_memory"),
    [(-signal.SIGKILL, OOM, True), (-signal.SIGKILL, "", False), (-signal.SIGTERM, OOM, False)],
)
def test_deaths_for_want_of_memory(returncode: int, oom: str, is_memory: bool) -> None:
    assert (
        is_out_of_memory(RankFailure(dead(returncode=returncode), Phase.CALL, None), oom)
        == is_memory
    )
