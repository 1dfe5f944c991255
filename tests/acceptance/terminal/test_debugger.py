"""pdb in ranks, on a terminal: who may use it, and what stands still meanwhile."""

from __future__ import annotations

import os
import pty
import re
import sys
import termios
import time
from pathlib import Path

import pexpect
import pexpect.fdpexpect
import pytest

from tests.acceptance.suite import Suite
from tests.environment import without_outer_run
from tests.warm import interpreter

pytestmark = pytest.mark.skipif(
    "DDP_ACCEPTANCE_ARGS" in os.environ, reason="the arguments of these runs are their subject"
)

_LIMIT = 120
SOURCE = """
    import os
    import time
    from datetime import timedelta
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist


    @pytest.mark.ddp(world_size=3)
    def test_one_fails(ddp):
        mine = 10 + ddp.rank
        print("said before")
        assert ddp.rank != 1, "of one"
        dist.barrier()


    @pytest.mark.ddp(world_size=2)
    def test_both_fail(ddp):
        if ddp.rank == 1:
            raise ValueError("of 1")
        while not Path("seen").exists():
            time.sleep(0.01)
        raise ValueError("of 0")


    @pytest.mark.ddp(world_size=2)
    def test_stops(ddp):
        total = torch.tensor([ddp.rank + 1.0])
        breakpoint()
        dist.all_reduce(total)
        print("all reduced", total.item())
        assert total.item() == 3


    @pytest.mark.ddp(world_size=2, timeout=3)
    def test_patience(ddp):
        group = dist.new_group(timeout=timedelta(seconds=1.5))
        if ddp.rank == 0:
            breakpoint()
        else:
            time.sleep(0.5)
        dist.barrier(group)


    def timeout():
        return dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout


    @pytest.fixture
    def slow_look(monkeypatch):
        # Two threads of rank 0 look for groups whose timeouts they lift, at the same time.
        from pytest_ddp.rank.hooks import debugger

        groups = debugger.groups
        monkeypatch.setattr(debugger, "groups", lambda: (time.sleep(0.5), groups())[1])


    @pytest.mark.ddp(world_size=2)
    def test_timeouts_are_set_back(ddp, slow_look):
        if ddp.rank == 0:
            breakpoint()
        ddp.barrier()


    @pytest.mark.ddp(world_size=2)
    def test_timeouts_were_set_back(ddp):
        assert timeout() == timedelta(minutes=30)


    @pytest.mark.ddp(world_size=2)
    def test_the_other_has_ended(ddp):
        if ddp.rank == 0:
            time.sleep(1)
            breakpoint()


    @pytest.mark.ddp(world_size=2)
    def test_the_other_has_its_timeouts(ddp):
        assert timeout() == timedelta(minutes=30)


    @pytest.mark.ddp(world_size=2)
    def test_hangs(ddp):
        stuck = "here"
        if ddp.rank == 1:
            dist.all_reduce(torch.ones(1))


    @pytest.mark.ddp(world_size=2)
    def test_of_torch(ddp):
        word = "there"
        for _ in range(2):
            dist.breakpoint(1, skip=1)
        dist.barrier()


    @pytest.mark.ddp(world_size=2)
    def test_captured(ddp, capsys):
        print("to be read")
        breakpoint()
        print("unseen")
        assert capsys.readouterr().out == "to be read\\nunseen\\n"


    @pytest.mark.ddp(world_size=2)
    def test_good(ddp):
        dist.barrier()
"""


class Terminal:
    """A pytest session on a terminal, and a user who types."""

    def __init__(self, directory: Path, *args: str, real: bool = False) -> None:
        """
        Args:
            directory: of the suite.
            args: pytest's.
            real: have it be the session's own, which sends signals when keys are pressed.
        """
        arguments = ["-m", "pytest", "-p", "no:cacheprovider", "--color=no", *args]
        if real:
            self._process, self._slave = None, -1
            self._child = pexpect.spawn(
                sys.executable, arguments, cwd=directory, env=_environment(), encoding="utf-8"
            )
        else:
            master, self._slave = pty.openpty()
            self._modes = termios.tcgetattr(self._slave)
            self._process = interpreter.start(
                arguments,
                cwd=directory,
                env=_environment(),
                stdin=self._slave,
                stdout=self._slave,
                stderr=self._slave,
            )
            self._child = pexpect.fdpexpect.fdspawn(master, encoding="utf-8")
        self._child.timeout = _LIMIT
        self.seen = ""

    def prompt(self, rank: int, size: int) -> str:
        """Wait for the prompt of this rank; what came before it."""
        return self.wait_for(re.escape(f"rank {rank} of {size} (Pdb) "))

    def any_prompt(self, size: int) -> int:
        """Wait for any rank's prompt; whose it is."""
        self.wait_for(rf"rank (\d) of {size} \(Pdb\) ")
        return int(self._child.match.group(1))

    def wait_for(self, pattern: str) -> str:
        self._child.expect(pattern)
        self.seen += self._child.before + self._child.after
        return str(self._child.before)

    def type(self, line: str) -> None:
        self._child.sendline(line)

    def press(self, key: str) -> None:
        self._child.send(key)

    def end(self) -> tuple[int, str]:
        """Wait for the end of the session: its exit code, and what came last."""
        rest = self.wait_for(r"in \d+\.\d+s.* =+\r\n")
        if self._process is None:
            self._child.expect(pexpect.EOF)
            self._child.close()
            return self._child.exitstatus, rest
        code = self._process.wait(_LIMIT)
        assert termios.tcgetattr(self._slave) == self._modes
        os.close(self._slave)
        self._child.close()
        return code, rest


def _environment() -> dict[str, str]:
    return without_outer_run("COLUMNS", "LINES", "CI") | {"TERM": "xterm"}


@pytest.fixture(autouse=True)
def source(suite: Suite) -> None:
    suite.write("test_debugged.py", SOURCE)


def test_post_mortem_of_the_rank_that_failed(suite: Suite) -> None:
    user = Terminal(suite.directory, "--pdb", "-k", "one_fails or good")
    before = user.prompt(1, 3)
    assert "said before" in before
    assert "AssertionError: of one" in before
    assert "entering PDB in rank 1 of 3" in before
    user.type("p mine, ddp.world_size")
    assert "(11, 3)" in user.prompt(1, 3)
    user.type("c")
    code, rest = user.end()
    assert (code, "1 failed, 1 passed" in user.seen) == (1, True), user.seen
    assert "rank 1 of 3 failed in call: AssertionError: of one" in rest
    assert "PDB" not in rest.partition("FAILURES")[2]


def test_several_that_failed_come_one_after_the_other_the_first_first(suite: Suite) -> None:
    user = Terminal(suite.directory, "--pdb", "-k", "both_fail")
    assert "ValueError: of 1" in user.prompt(1, 2)
    suite.write("seen", "")  # rank 0 goes on, and fails
    user.type("p 'typed once'")
    user.prompt(1, 2)
    time.sleep(3)  # longer than ranks are given after a failure
    user.type("c")
    assert "ValueError: of 0" in user.prompt(0, 2)
    user.press("\x1b[A\x1b[A\r")
    assert "'typed once'" in user.prompt(0, 2)
    user.type("c")
    code, rest = user.end()
    assert code == 1
    assert "ValueError: of 1" in rest
    assert "rank 0 failed in call" in rest


def test_ranks_come_to_a_breakpoint_in_turn(suite: Suite) -> None:
    user = Terminal(suite.directory, "-k", "stops")
    first = user.any_prompt(2)
    user.type("p ddp.rank")
    assert f"\r\n{first}\r\n" in user.prompt(first, 2)
    user.type("c")
    user.prompt(1 - first, 2)
    user.type("n")
    user.prompt(1 - first, 2)
    user.type("n")
    assert "all reduced 3.0" in user.prompt(1 - first, 2)
    user.type("c")
    assert user.end()[0] == 0
    assert "1 passed" in user.seen


def test_one_rank_alone_stops_if_it_is_named(suite: Suite) -> None:
    user = Terminal(suite.directory, "--ddp-debug-rank=1", "-k", "stops or good")
    user.prompt(1, 2)
    user.type("n")
    user.prompt(1, 2)
    user.type("c")
    assert user.end()[0] == 0
    assert "2 passed" in user.seen


def test_no_clock_runs_while_the_user_thinks(suite: Suite) -> None:
    user = Terminal(suite.directory, "-k", "patience")
    user.prompt(0, 2)
    time.sleep(5)
    user.type("c")
    assert user.end()[0] == 0
    assert "1 passed" in user.seen


@pytest.mark.parametrize("tests", ["set_back", "the_other"])
def test_timeouts_of_groups_are_set_back(suite: Suite, tests: str) -> None:
    user = Terminal(suite.directory, "-k", tests)
    user.prompt(0, 2)
    user.type("p timeout().days")
    assert "\r\n1\r\n" in user.prompt(0, 2)
    user.type("c")
    code, rest = user.end()
    assert (code, "2 passed" in rest) == (0, True), rest


def test_quitting_a_breakpoint_ends_the_session(suite: Suite) -> None:
    user = Terminal(suite.directory, "-k", "stops or good")
    user.any_prompt(2)
    user.type("q")
    code, rest = user.end()
    assert (code, "Exit: Quitting debugger" in rest) == (2, True)
    assert not re.search("passed|failed|error", rest)


def test_quitting_a_post_mortem_ends_the_session(suite: Suite) -> None:
    user = Terminal(suite.directory, "--pdb", "-k", "one_fails or good")
    user.prompt(1, 3)
    user.type("q")
    code, rest = user.end()
    assert (code, "Exit: Quitting debugger" in rest) == (2, True)
    assert "== 1 failed, 10 deselected" in rest


def test_a_hang_is_entered(suite: Suite) -> None:
    user = Terminal(suite.directory, "--pdb", "-k", "hangs or good")
    assert "dist.all_reduce(torch.ones(1))" in user.prompt(1, 2)
    user.type("p stuck")
    assert "'here'" in user.prompt(1, 2)
    user.type("c")
    code, rest = user.end()
    assert code == 1
    assert "deadlock: rank 1 waits in all_reduce #1" in rest
    assert "1 failed, 1 passed" in user.seen


@pytest.mark.parametrize(("args", "rank"), [((), 0), (("--ddp-debug-rank=1",), 1)])
def test_trace_stops_one_rank(suite: Suite, args: tuple[str, ...], rank: int) -> None:
    user = Terminal(suite.directory, "--trace", *args, "-k", "good")
    assert "dist.barrier()" in user.prompt(rank, 2)
    user.type("n")
    assert "--Return--" in user.prompt(rank, 2)
    user.type("c")
    assert user.end()[0] == 0


def test_a_breakpoint_of_torch(suite: Suite) -> None:
    user = Terminal(suite.directory, "-k", "of_torch")
    user.prompt(1, 2)
    user.type("p word")
    assert "'there'" in user.prompt(1, 2)
    user.type("c")
    assert user.end()[0] == 0


def test_a_rank_that_dies_at_its_prompt(suite: Suite) -> None:
    user = Terminal(suite.directory, "-k", "patience or good")
    user.prompt(0, 2)
    user.type("import signal; os.kill(os.getpid(), signal.SIGKILL)")
    code, rest = user.end()
    assert code == 1
    assert "rank 0 died of SIGKILL in call" in rest
    assert "1 failed, 1 passed" in user.seen


@pytest.mark.parametrize("capture", ["no", "sys"])
def test_other_ways_of_capture(suite: Suite, capture: str) -> None:
    user = Terminal(suite.directory, f"--capture={capture}", "--ddp-debug-rank=0", "-k", "stops")
    user.prompt(0, 2)
    user.type("p total")
    assert "tensor([1.])" in user.prompt(0, 2)
    user.type("c")
    assert user.end()[0] == 0


def test_beside_a_fixture_that_captures(suite: Suite) -> None:
    user = Terminal(suite.directory, "--ddp-debug-rank=1", "-k", "captured")
    user.prompt(1, 2)
    user.type("p 'seen'")
    assert "'seen'" in user.prompt(1, 2)
    user.type("c")
    assert user.end()[0] == 0
    assert "\r\nunseen\r\n" not in user.seen


def test_a_class_of_the_users(suite: Suite) -> None:
    suite.write("mine.py", "import pdb\nclass Mine(pdb.Pdb):\n    do_hello = pdb.Pdb.do_p\n")
    user = Terminal(suite.directory, "--pdb", "--pdbcls=mine:Mine", "-k", "one_fails")
    user.prompt(1, 3)
    user.type("hello mine")
    assert "\r\n11\r\n" in user.prompt(1, 3)
    user.type("c")
    assert user.end()[0] == 1


def test_keys_that_send_signals_mean_the_rank(suite: Suite) -> None:
    user = Terminal(suite.directory, "--ddp-debug-rank=0", "-k", "stops", real=True)
    user.prompt(0, 2)
    user.type("time.sleep(600)")
    time.sleep(1)
    user.press("\x03")
    assert "KeyboardInterrupt" in user.prompt(0, 2)
    user.press("\x1a")
    user.type("p 'still here'")
    assert "'still here'" in user.prompt(0, 2)
    user.type("c")
    assert user.end()[0] == 0


def test_without_a_terminal(suite: Suite) -> None:
    finished = suite.run("--pdb", "-k", "one_fails or stops")
    finished.assert_outcomes(failed=2)
    refusal = "the standard input of pytest is no terminal"
    assert f"cannot open a debugger: {refusal}" in finished["test_stops"].text
    shown = [text for text in finished.warnings if refusal in text]
    assert shown == [f"--pdb opens no debugger in ranks: {refusal}"]


def test_in_a_worker_of_xdist(suite: Suite) -> None:
    finished = suite.run("-n1", "-k", "stops")
    assert "a worker of pytest-xdist has no terminal" in finished["test_stops"].text


def test_a_filter_that_makes_an_error_of_the_refusal(suite: Suite) -> None:
    finished = suite.run("--pdb", "-W", "error::pytest_ddp.DdpWarning", "-k", "one_fails or good")
    assert finished["test_good"].verdict == "passed"
    assert "INTERNALERROR" not in finished.output
    assert "A filter makes an error of this warning." in finished.output
