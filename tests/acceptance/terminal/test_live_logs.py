"""pytest's live logs and log file show and keep what ranks log, as of any test."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import UNDER_XDIST, Finished, Suite

pytestmark = pytest.mark.skipif(UNDER_XDIST, reason="its workers show no live logs, of no test")

SOURCE = r"""
    import logging
    import multiprocessing
    import os
    import signal
    import threading
    import time

    import pytest
    import torch
    import torch.distributed as dist

    log = logging.getLogger("mine")
    log.info("imported")
    pytestmark = pytest.mark.ddp(world_size=2)


    @pytest.fixture
    def place(ddp):
        log.info("in set-up of %d", ddp.rank)
        ddp.barrier()
        yield
        ddp.barrier()
        log.info("in teardown of %d", ddp.rank)


    @pytest.fixture(scope="session")
    def wide():
        yield
        log.info("in the last teardown")


    def test_phases(ddp, place):
        log.info("in call of %d", ddp.rank)
        log.debug("for the file alone")
        logging.getLogger("other").log(5, "for nobody")


    def test_turns(ddp):
        for turn in range(40):
            ddp.barrier()
            if ddp.rank == turn % 2:
                log.info("turn %d", turn)


    def test_caplog(ddp, caplog):
        log.info("for caplog too")
        assert caplog.messages == ["for caplog too"]
        with caplog.at_level(logging.CRITICAL):
            log.info("below the level")


    class Odd:
        def __str__(self):
            raise ValueError("no text")


    def test_what_cannot_be_pickled(ddp):
        log.info("lock %s", type(threading.Lock()).__name__, extra={"odd": Odd(), "big": 10**5000})
        try:
            raise ValueError("the cause")
        except ValueError:
            log.exception("it failed")
        log.info("lone \udc80")
        log.info("long %s end", "x" * 300_000)


    def test_threads_and_children(ddp):
        thread = threading.Thread(target=log.info, args=("by a thread",))
        thread.start()
        thread.join()
        context = multiprocessing.get_context("fork")
        child = context.Process(target=log.info, args=("by a child",))
        child.start()
        child.join()


    def test_signals(ddp):
        signal.signal(signal.SIGALRM, lambda *_: log.info("by a handler"))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for number in range(500):
            log.info("number %d", number)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


    def test_takes_away_all_handlers(ddp):
        logging.basicConfig(force=True)
        logging.getLogger().handlers.clear()
        logging.getLogger().setLevel(logging.INFO)


    def test_after_that(ddp):
        log.info("here again")


    def test_much_on_one_rank(ddp):
        if ddp.rank == 0:
            for number in range(20_000):
                log.info("much %d", number)
        dist.all_reduce(torch.ones(1))


    def test_unlike_arguments(ddp):
        log.info("%d", "no number")


    def test_killed(ddp):
        log.info("last words of %d", ddp.rank)
        if ddp.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


    def test_hangs(ddp):
        log.info("before the hang")
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(1))


    @pytest.mark.ddp(timeout=2)
    def test_times_out(ddp):
        log.info("before the end of time")
        time.sleep(60)


    @pytest.mark.ddp(isolate=True)
    def test_isolated(ddp):
        log.info("isolated")


    @pytest.mark.ddp(world_size=1)
    def test_alone(ddp):
        log.info("alone")


    @pytest.mark.ddp(world_size=4)
    def test_four(ddp):
        log.info("one of four")


    def test_wide(wide):
        log.info("with a session's fixture")
"""
FAILING = {"test_unlike_arguments", "test_killed", "test_hangs", "test_times_out"}
LIVE = ("-o", "log_cli=true", "--log-cli-level=INFO", "--log-cli-format=%(message)s")


@pytest.fixture(scope="module")
def logged(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("kept/run.log", "what was there before\n")
    return run(suite, "--log-file-mode=a")


def run(suite: Suite, *args: str) -> Finished:
    suite.write("test_logs.py", SOURCE)
    file = ("--log-file=kept/run.log", "--log-file-level=DEBUG", "--log-file-format=%(message)s")
    return suite.run(*LIVE, *file, *args, timeout=90)


def kept(finished: Finished) -> str:
    path = finished.directory / "kept" / "run.log"
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def live(finished: Finished, test: str) -> list[str]:
    """Lines that stand on the terminal between a test's name and its outcome."""
    [(_, text)] = re.findall(
        rf"^test_logs\.py::({test}) \n(.*?)^(?:PASSED|FAILED)",
        finished.stdout,
        re.MULTILINE | re.DOTALL,
    )
    return text.splitlines()


def test_no_verdict_is_another_for_it(logged: Finished) -> None:
    logged.assert_outcomes(passed=len(logged.results) - len(FAILING), failed=len(FAILING))
    assert {n for n in FAILING if logged[n].verdict == "failed"} == FAILING


def test_each_phase_has_its_section_as_pytest_writes_it(logged: Finished) -> None:
    lines = [line for line in live(logged, "test_phases") if line]
    assert [re.sub("-{3,}", "", line) for line in lines[::3]] == [
        *(" live log setup ", " live log call ", " live log teardown "),
    ]
    for phase, said in enumerate(("in set-up of", "in call of", "in teardown of")):
        shown = sorted(lines[3 * phase + 1 : 3 * phase + 3])
        assert shown == [f"[rank {rank}] {said} {rank}" for rank in (0, 1)]


def test_levels_are_those_of_the_options(logged: Finished) -> None:
    assert "for the file alone" not in logged.stdout
    assert kept(logged).count("] for the file alone\n") == 2
    assert "for nobody" not in kept(logged) + logged.stdout


def test_the_file_goes_on_where_it_ended(logged: Finished) -> None:
    assert kept(logged).startswith("what was there before\n")


def test_what_is_logged_at_import_is_reported_once(logged: Finished) -> None:
    assert logged.stdout.count("imported\n") == 1
    assert kept(logged).count("imported\n") == 1


def test_records_are_in_order_of_time(logged: Finished) -> None:
    shown = re.findall(r"\[rank (\d)\] turn (\d+)", "\n".join(live(logged, "test_turns")))
    assert shown == [(str(turn % 2), str(turn)) for turn in range(40)]
    assert re.findall(r"\[rank (\d)\] turn (\d+)", kept(logged)) == shown


def test_caplog_is_the_ranks_own(logged: Finished) -> None:
    lines = live(logged, "test_caplog")
    assert sorted(line for line in lines if "caplog" in line) == [
        "[rank 0] for caplog too",
        "[rank 1] for caplog too",
    ]
    assert "below the level" not in kept(logged)


def test_odd_records_come_whole(logged: Finished) -> None:
    text = kept(logged)
    assert text.count("] lock lock\n") == 2
    assert len(re.findall(r"\] it failed\nTraceback .*\n(  .*\n)+ValueError: the cause", text)) == 2
    assert text.count(f"] long {'x' * 300_000} end\n") == 2


def test_threads_children_and_handlers_of_signals_log_too(logged: Finished) -> None:
    text = kept(logged)
    for words in ("by a thread", "by a child", "number 0", "number 499"):
        assert text.count(f"] {words}\n") == 2, words
    assert "] by a handler\n" in text


def test_handlers_that_were_taken_away_are_back(logged: Finished) -> None:
    assert sorted(live(logged, "test_after_that"))[-2:] == [
        "[rank 0] here again",
        "[rank 1] here again",
    ]


def test_much_is_neither_lost_nor_a_hang(logged: Finished) -> None:
    numbers = re.findall(r"^\[rank 0\] much (\d+)$", kept(logged), re.MULTILINE)
    assert numbers == [str(number) for number in range(20_000)]


def test_the_last_records_of_a_rank_that_dies_are_shown(logged: Finished) -> None:
    assert {"[rank 0] last words of 0", "[rank 1] last words of 1"} <= {
        *live(logged, "test_killed")
    }
    assert "rank 1 died of SIGKILL" in logged["test_killed"].text


@pytest.mark.parametrize(
    ("test", "words"),
    [("test_hangs", "before the hang"), ("test_times_out", "before the end of time")],
)
def test_records_of_ranks_that_hang_are_shown(logged: Finished, test: str, words: str) -> None:
    assert {f"[rank 0] {words}", f"[rank 1] {words}"} <= {*live(logged, test)}


def test_the_only_rank_has_no_prefix(logged: Finished) -> None:
    assert "alone" in live(logged, "test_alone")
    assert "\nalone\n" in kept(logged)


def test_other_ranks(logged: Finished) -> None:
    lines = live(logged, "test_four")
    assert {f"[rank {rank}] one of four" for rank in range(4)} <= {*lines}
    assert kept(logged).count("] isolated\n") == 2
    assert kept(logged).count("] in the last teardown\n") == 2


@pytest.mark.parametrize("how", ["--ddp-start-method=spawn", "--ddp-import=host"])
def test_ranks_of_another_start_log_alike(suite: Suite, how: str) -> None:
    finished = run(suite, how, "-k", "phases or alone")
    finished.assert_outcomes(passed=2)
    for text in (kept(finished), finished.stdout):
        shown = ["imported", "\nalone", *(f"[rank {r}] in call of {r}" for r in (0, 1))]
        assert {line: text.count(f"{line}\n") for line in shown} == dict.fromkeys(shown, 1)


def test_workers_of_xdist_show_nothing_live_and_keep_all(suite: Suite) -> None:
    suite.write("test_logs.py", SOURCE)
    file = ("--log-file=run.log", "--log-file-mode=a")
    finished = suite.run(*LIVE, *file, "-n", "2", "-k", "phases or caplog")
    finished.assert_outcomes(passed=2)
    assert "in call of" not in finished.stdout
    text = (suite.directory / "run.log").read_text()
    assert text.count("] in call of") == text.count("] for caplog too") == 2
