"""The texts of ranks that died, or had to be stopped."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from pytest_ddp.outcome.outcome import Ending, Hang, HangKind, RankLine
from pytest_ddp.protocol.messages import Phase
from tests.acceptance.suite import flat
from tests.unit import handmade as made
from tests.unit.handmade import (
    ALL_REDUCE,
    ASSERTED,
    BLOCKED,
    CLOSED,
    CRASHED,
    SPINNING,
    TEST_FILE,
    dead,
    failure,
    place,
    stopped,
    text,
    verdict,
)
from tests.unit.standings import code_line

SETUP, CALL, TEARDOWN = Phase
IN_ADD = (
    "SIGSEGV(11), PID: 1, Thread 1: \n"
    "frame #1: c10::FatalSignalHandler::fatalSignalHandler(int, siginfo_t*) + 0x2 (0x7f in x.so)\n"
    "frame #7: at::_ops::add_Tensor::call(at::Tensor const&) + 0x1 (0x7f in x.so)\n"
)

# ------------------------------------------------------------------ dead ranks


def test_signal_with_stack() -> None:
    report = failure(made.passing(0), dead(stacks=CRASHED, native=IN_ADD))
    assert verdict(report) == "rank 1 died of SIGSEGV in call"
    assert place(report) == (TEST_FILE, 14)
    assert report.longreprtext == (
        "rank 1 died of SIGSEGV in call, at tests/test_made.py:14 in helper\n"
        "\n"
        "rank 0  passed\n"
        "rank 1  died    call  tests/test_made.py:14 in helper\n"
        "\n"
        "it was inside the operator at::_ops::add_Tensor::call\n"
        "\n"
        "rank 1 in call, most recent call first:\n"
        "> tests/test_made.py:14 in helper\n"
        "  tests/test_made.py:30 in test_made\n"
        "\n"
        "DDP-020: python -m pytest_ddp explain DDP-020"
    )


def test_what_was_raised_before_the_end_is_shown() -> None:
    """NCCL's watchdog ends the process during pytest's report, after an error of CUDA."""
    dying = dead(
        returncode=-signal.SIGABRT,
        phase=("call", "backward"),
        raised="torch.AcceleratorError: CUDA error: device-side assert triggered",
        stderr=(
            "[rank1]:[E1126 05:34:29 ProcessGroupNCCL.cpp:2303] [PG ID 0 Rank 1] Process group "
            "watchdog thread terminated with exception: CUDA error: device-side assert triggered\n"
            "CUDA kernel errors might be asynchronously reported at some other API call\n"
        ),
    )
    said = flat(text(made.passing(0), dying))
    assert (
        "its call had raised torch.AcceleratorError: CUDA error: device-side assert triggered"
    ) in said
    assert "NCCL's watchdog ended it: CUDA error: device-side assert triggered" in said
    plain = flat(text(made.passing(0), dead(returncode=-signal.SIGABRT)))
    assert "had raised" not in plain
    assert "watchdog" not in plain


def test_text_for_sigkill_has_why_there_is_no_stack() -> None:
    report = failure(made.passing(0), dead(returncode=-signal.SIGKILL))
    assert "SIGKILL leaves no stack; the out-of-memory killer sends it too" in report.longreprtext
    assert place(report) == ("tests/test_made.py", 10)
    asked = text(made.passing(0), dead(returncode=-signal.SIGKILL, stacks=BLOCKED))
    assert "the one below was requested earlier" in asked


@pytest.mark.parametrize(
    ("returncode", "said"),
    [
        (0, "rank 1 exited with code 0 before reporting call"),
        (3, "rank 1 exited with code 3 before reporting call"),
        (-signal.SIGTERM, "rank 1 died of SIGTERM in call"),
        (-63, "rank 1 died of signal 63 in call"),
        (None, "rank 1 died in call"),
    ],
)
def test_ways_to_die(returncode: int, said: str) -> None:
    report = failure(made.passing(0), dead(returncode=returncode))
    assert verdict(report) == said
    assert "the rank left no stack" in report.longreprtext
    assert ("exit code 0 is no verdict" in report.longreprtext) == (returncode == 0)


def test_exit_after_the_last_report() -> None:
    gone = made.passing(1, ending=Ending.EXITED, returncode=0)
    assert verdict(failure(made.passing(0), gone)) == (
        "rank 1 exited with code 0 after reporting teardown"
    )


def test_mismatch_of_shapes() -> None:
    stderr = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 600 vs 300."
    )
    shown = text(made.passing(0, CLOSED), dead(returncode=-signal.SIGABRT, stderr=stderr))
    assert "tensors of different shape or dtype" in " ".join(shown.split())
    assert "shape or dtype" not in text(dead(returncode=-signal.SIGABRT))


COLLECTIVES, MESSAGE = "the ranks gave one collective", "a message was longer"


@pytest.mark.parametrize(
    ("calls", "causes"),
    [
        (["all_reduce"], [COLLECTIVES]),
        (["recv"], [MESSAGE]),
        (["irecv"], [COLLECTIVES, MESSAGE]),
        (["irecv", "batch_isend_irecv"], [COLLECTIVES, MESSAGE]),
        ([], [COLLECTIVES, MESSAGE]),
    ],
)
def test_cause_of_an_abort_by_gloo_follows_from_the_call(
    calls: list[str], causes: list[str]
) -> None:
    stderr = "gloo::EnforceNotMet'\n  what():  [enforce fail at op.preamble.length <= op.nbytes"
    frames = [("/torch/distributed/distributed_c10d.py", 9, call) for call in calls]
    stacks = made.stacks(*frames, (TEST_FILE, 30, "test_made"))
    shown = " ".join(text(dead(returncode=-signal.SIGABRT, stderr=stderr, stacks=stacks)).split())
    assert [cause for cause in (COLLECTIVES, MESSAGE) if cause in shown] == causes


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("loop.cc:212] nfds != -1. -1 vs -1", "a descriptor of gloo's was closed"),
        ("loop.cc:174] rv != -1. epoll_ctl: Bad file descriptor", "a descriptor of gloo's was"),
        ("tcp/pair.cc:99] something new. 1 vs 2", "tcp/pair.cc:99] something new. 1 vs 2"),
    ],
)
def test_reason_of_gloo_is_read_before_it_is_reported(check: str, words: str) -> None:
    stderr = f"gloo::EnforceNotMet'\n  what():  [enforce fail at gloo/transport/{check}"
    shown = " ".join(text(dead(returncode=-signal.SIGABRT, stderr=stderr)).split())
    assert words in shown
    assert "shape or dtype" not in shown


def test_exit_code_of_a_lost_channel_is_explained() -> None:
    assert "finds its connection to pytest closed" in " ".join(text(dead(returncode=78)).split())


def test_rank_that_pytest_ended_died_of_nothing_else() -> None:
    shown = text(dead(returncode=-signal.SIGKILL, problem="lost its connection to pytest"))
    assert shown.startswith("rank 1 lost its connection to pytest in call")
    assert "out-of-memory" not in shown


def test_like_deaths_once() -> None:
    report = failure(*(dead(r, stacks=CRASHED, at=2.0 + r) for r in range(3)))
    assert verdict(report) == "ranks 0-2 died of SIGSEGV in call"
    assert report.longreprtext.count("most recent call first") == 1


def test_unlike_deaths_are_all_shown() -> None:
    shown = text(*(dead(r, r, stacks=CRASHED, at=3.0 - r) for r in range(3)))
    heads = ["rank 2 exited with code 2", "rank 1 exited with code 1", "rank 0 exited with code 0"]
    assert [shown.index(head) for head in heads] == sorted(shown.index(head) for head in heads)


def test_first_to_die_is_reported_first_however_close() -> None:
    report = failure(dead(0, 3, at=2.0), dead(1, 4, at=1.99))
    assert verdict(report).startswith("rank 1 exited with code 4")


def test_deep_recursion_is_folded() -> None:
    deep = made.stacks(*[(TEST_FILE, 7, "descend")] * 99, (TEST_FILE, 30, "test_made"))
    shown = text(dead(stacks=deep))
    assert "> tests/test_made.py:7 in descend\n  ... and 98 more calls from there\n" in shown


def test_pytest_exit_is_named() -> None:
    left = made.rank(1, made.report(SETUP), made.report(TEARDOWN), exit_reason="no point")
    assert verdict(failure(made.passing(0), left)) == (
        "rank 1 ended its test without a call report (pytest.exit: no point)"
    )


# ------------------------------------------------------------------ hangs


def test_timeout_shows_every_stack() -> None:
    ranks = made.passing(0), stopped(1), stopped(2), stopped(3, SPINNING)
    report = failure(*ranks, timeout=5.0)
    assert verdict(report) == "timed out after 5 s: ranks 1-3 have not finished call"
    assert place(report) == (TEST_FILE, 33)
    assert report.longreprtext == (
        "timed out after 5 s: ranks 1-3 have not finished call\n"
        "\n"
        "ranks 1-2 in call, most recent call first:\n"
        "  torch/distributed/distributed_c10d.py:3252 in all_reduce\n"
        "> tests/test_made.py:33 in test_made\n"
        "\n"
        "rank 3 in call, most recent call first:\n"
        "> tests/test_made.py:50 in spin\n"
        "  tests/test_made.py:35 in test_made\n"
        "\n"
        "rank 0: passed\n"
        "\n"
        "DDP-004: python -m pytest_ddp explain DDP-004"
    )


def test_timeout_of_one_rank() -> None:
    report = failure(made.passing(0), stopped(1), timeout=0.25)
    assert verdict(report) == "timed out after 0.25 s: rank 1 has not finished call"


def test_timeout_in_different_phases() -> None:
    stuck = made.rank(1, ending=Ending.STOPPED, stacks=BLOCKED)
    assert verdict(failure(stopped(0), stuck, timeout=5.0)) == (
        "timed out after 5 s: rank 1 has not finished setup, rank 0 has not finished call"
    )


def test_timeout_without_a_stack() -> None:
    assert "rank 1 in call gave no stack" in text(made.passing(0), stopped(1, ""), timeout=5.0)


def test_timeout_beside_a_failure_is_a_remark() -> None:
    report = failure(made.passing(0, ASSERTED), stopped(1), timeout=5.0)
    assert verdict(report) == "rank 0: assert 3 == 4"
    assert report.longreprtext.endswith("\ntimed out after 5 s")


def test_timeout_beside_a_broken_connection_is_the_story() -> None:
    report = failure(made.passing(0, CLOSED), stopped(1), timeout=5.0)
    assert verdict(report) == "timed out after 5 s: rank 1 has not finished call"
    assert "rank 0: could not go on in call" in report.longreprtext


def test_stop_without_a_timeout() -> None:
    ranks = made.passing(0), stopped(1), stopped(2)
    assert verdict(failure(*ranks)) == "ranks 1-2 were stopped in call"
    assert verdict(failure(*ranks[:2])) == "rank 1 was stopped in call"


def test_threads_of_the_user_are_shown() -> None:
    both = made.stacks((TEST_FILE, 70, "worker"), header="Thread 0x1", machinery=False) + BLOCKED
    shown = text(made.passing(0), stopped(1, both), timeout=5.0)
    assert "rank 1 in call, another thread:\n> tests/test_made.py:70 in worker\n" in shown
    library = made.stacks((LOADER, 57, "do"), header="Thread 0x1", machinery=False) + BLOCKED
    assert "another thread" not in text(made.passing(0), stopped(1, library), timeout=5.0)


def test_thread_that_waits_for_other_ranks_is_shown() -> None:
    waits = made.stacks(*ALL_REDUCE, header="Thread 0x1", machinery=False) + BLOCKED
    shown = text(made.passing(0), stopped(1, waits), timeout=5.0)
    _, _, thread = shown.partition("rank 1 in call, another thread:\n")
    assert "distributed_c10d.py" in thread


def test_ranks_with_the_same_main_stack_and_unlike_threads_are_not_folded() -> None:
    """The tests run ``pool.submit(a if ddp.rank == 0 else b).result()``, for example."""

    def of(function: str) -> str:
        frames = *ALL_REDUCE, (TEST_FILE, 70, function)
        return made.stacks(*frames, header="Thread 0x1", machinery=False) + BLOCKED

    shown = text(stopped(0, of("a")), stopped(1, of("b")), stopped(2, of("a")), timeout=5.0)
    assert "ranks 0, 2 in call, another thread:" in shown
    assert (shown.count(":70 in a"), shown.count(":70 in b")) == (1, 1)
    assert "rank 1 in call, another thread:" in shown
    alone = text(stopped(0, of("a")), stopped(1), timeout=5.0)
    assert "rank 0 in call, another thread:" in alone
    assert "ranks 0-1 in call" not in alone
    same = text(stopped(0, of("a")), stopped(1, of("a")), timeout=5.0)
    assert "ranks 0-1 in call, another thread:" in same


def test_stack_of_machinery_alone_is_not_empty() -> None:
    shown = text(made.passing(0), stopped(1, made.stacks()), timeout=5.0)
    assert "_pytest/runner.py:179 in pytest_runtest_call" in shown


# ------------------------------------------------------------------ proven hangs

LOADER = "/env/lib/python3.11/site-packages/torch/utils/data/_utils/pin_memory.py"
SENTENCE = "deadlock: rank 0 waits in all_reduce #7 of the default group, rank 2 in barrier #7"
HANG = Hang(
    HangKind.FOR_ENDED,
    what=SENTENCE.removeprefix("deadlock: "),
    culprits=(2,),
    table=(
        RankLine(
            0, "waits", ("call",), "all_reduce #7", code_line("tests/test_made.py:33 in test_made")
        ),
        RankLine(1, "ended", (), "", None),
        RankLine(
            2, "waits", ("backward",), "barrier #7", code_line("tests/test_made.py:40 in test_made")
        ),
    ),
)


def test_proven_hang_is_the_verdict_and_a_table_follows() -> None:
    report = failure(stopped(0), made.passing(1), stopped(2, SPINNING), hang=HANG)
    assert verdict(report) == SENTENCE
    assert report.longreprtext.startswith(
        "deadlock: rank 0 waits in all_reduce #7 of the default group, rank 2 in barrier\n"
        "  #7\n"
        "\n"
        "rank 0  waits  call      all_reduce #7  tests/test_made.py:33 in test_made\n"
        "rank 1  ended\n"
        "rank 2  waits  backward  barrier #7     tests/test_made.py:40 in test_made\n"
        "\n"
        "rank 0 in call, most recent call first:\n"
    )
    assert "rank 1: passed" not in report.longreprtext


def test_wide_table_puts_places_below() -> None:
    row = replace(HANG.table[0], collective="all_reduce #7 of the default group")
    ranks = stopped(0), made.passing(1), stopped(2)
    shown = text(*ranks, hang=replace(HANG, table=(row, *HANG.table[1:])))
    assert (
        "rank 0  waits  call      all_reduce #7 of the default group\n"
        "                         tests/test_made.py:33 in test_made\n"
        "rank 1  ended\n"
    ) in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_proven_hang_beside_a_failure_is_a_note() -> None:
    report = failure(stopped(0), made.passing(1, ASSERTED), stopped(2), hang=HANG)
    assert verdict(report) == "rank 1: assert 3 == 4"
    shown = report.longreprtext
    assert shown.index("E       assert 3 == 4") < shown.index("deadlock: rank 0 waits")
    assert "rank 0  waits   call      all_reduce #7  tests/test_made.py:33" in shown
    assert "rank 1  failed  call" in shown


def test_proven_hang_without_a_table() -> None:
    hang = Hang(HangKind.FOR_ENDED, "so it is", (), ())
    assert text(stopped(0), hang=hang).startswith("deadlock: so")


def test_proven_hang_is_not_hidden_by_an_expected_failure() -> None:
    ranks = made.passing(0, made.xfailed("known")), stopped(1)
    assert verdict(failure(*ranks, hang=HANG)) == SENTENCE


def test_proven_hang_beside_a_broken_connection_is_the_story() -> None:
    assert verdict(failure(made.passing(0, CLOSED), stopped(1), hang=HANG)) == SENTENCE
