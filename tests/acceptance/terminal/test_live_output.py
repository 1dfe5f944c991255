"""What ranks write past pytest's capture is shown at once, with the rank that wrote it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import UNDER_XDIST, Finished, Suite

pytestmark = pytest.mark.skipif(UNDER_XDIST, reason="it takes its workers' standard output")

SOURCE = r"""
    import os
    import signal
    import subprocess
    import sys
    import time

    import pytest

    pytestmark = MARKS


    @pytest.fixture
    def noisy():
        print("in set-up")
        yield
        print("in teardown")


    def test_says(noisy):
        print("by print")
        print("to stderr", file=sys.stderr)
        sys.stdout.flush()
        os.write(1, b"by write\n")
        subprocess.run(["echo", "by a child"], check=True)


    def test_disabled(capsys):
        print("captured")
        with capsys.disabled():
            print("disabled")
            print("disabled too", file=sys.stderr)
            sys.stdout.flush()
        print("captured again")
        assert capsys.readouterr().out == "captured\ncaptured again\n"


    def test_descriptors_disabled(capfd):
        os.write(1, b"captured\n")
        with capfd.disabled():
            os.write(1, b"disabled descriptor\n")
        assert capfd.readouterr().out == "captured\n"


    def test_bytes():
        os.write(1, b"before \xff after, \xc3\xa4\n")


    def test_parts():
        print("no end of line", end="")
"""
CASES = r"""
    import os
    import signal
    import sys
    import time

    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)


    def test_long_lines(ddp):
        for number in range(50):
            sys.stdout.write(f"{number} " + str(ddp.rank) * 5000)
            sys.stdout.flush()
            print(" end")


    def test_bar(ddp):
        for percent in (10, 20, 30):
            sys.stdout.write(f"\r{percent}% of {ddp.rank}")
            sys.stdout.flush()
        print()
        os.write(1, b"dos line\r\n")


    def test_killed(ddp):
        print("last words of", ddp.rank)
        if ddp.rank == 1:
            os.write(1, b"and a part")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


    def test_endless(ddp):
        os.write(1, b"y" * 200_000)
        os.write(1, b"\n")


    def test_much(ddp):
        if ddp.rank == 0:
            for number in range(20_000):
                print("much", number)
        dist.barrier()


    @pytest.fixture(scope="session")
    def wide():
        yield
        print("in the last teardown")


    def test_wide(wide):
        pass


    @pytest.mark.ddp(world_size=4, isolate=True)
    def test_four(ddp):
        print("one of four")
"""
FLAGS = ("-s", "--capture=tee-sys", "--capture=sys", "--capture=fd")
MARKS = {
    "plain": "[]",
    "single": "pytest.mark.ddp(world_size=1)",
    "two": "pytest.mark.ddp(world_size=2)",
}


@pytest.mark.parametrize("flag", FLAGS)
def test_the_only_rank_writes_as_a_plain_test_does(suite: Suite, flag: str) -> None:
    """The only rank writes without its number; each of two writes the same lines with its
    number."""
    for name, marks in MARKS.items():
        suite.write(f"test_{name}.py", SOURCE.replace("MARKS", marks))
    finished = suite.run(flag)
    finished.assert_outcomes(passed=15)
    parts = re.split(r"test_\w+\.py ", finished.stdout.rpartition("\n\n====")[0])
    # Without pytest's dots, which stand where a line without an end has ended.
    seen = (re.sub(r" *\[ *\d+%\]|\.", "", part).strip() for part in parts[1:])
    plain, single, two = seen
    assert single == plain
    of_two = [re.findall(rf"\[rank {rank}\] (.*)", two) for rank in (0, 1)]
    assert of_two == [plain.splitlines()] * 2
    assert not re.sub(r"\[rank \d\] .*\n?", "", two)
    errors = finished.stderr.splitlines()
    size = len(errors) // 4
    assert errors[:size] == errors[size : 2 * size]
    assert sorted(errors[2 * size :]) == sorted(
        f"[rank {rank}] {line}" for rank in (0, 1) for line in errors[:size]
    )


@pytest.fixture(scope="module")
def shown(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_cases.py", CASES)
    return suite.run("-s", timeout=60)


def test_verdicts(shown: Finished) -> None:
    shown.assert_outcomes(passed=len(shown.results) - 1, failed=1)
    assert "rank 1 died of SIGKILL" in shown["test_killed"].text


def test_lines_are_not_torn(shown: Finished) -> None:
    for rank in (0, 1):
        found = re.findall(rf"\[rank {rank}\] (\d+) {rank}{{5000}} end$", shown.stdout, re.M)
        assert found == [str(number) for number in range(50)]


def test_states_of_a_bar_are_lines(shown: Finished) -> None:
    for rank in (0, 1):
        bar = "".join(f"[rank {rank}] {percent}% of {rank}\n" for percent in (10, 20, 30))
        lines = [
            line for line in shown.stdout.splitlines(keepends=True) if f"[rank {rank}]" in line
        ]
        assert bar in "".join(lines)
        assert f"[rank {rank}] dos line\n" in lines


def test_the_last_output_of_a_rank_that_dies_is_shown(shown: Finished) -> None:
    for words in ("[rank 0] last words of 0", "[rank 1] last words of 1", "[rank 1] and a part"):
        assert f"{words}\n" in shown.stdout


def test_a_line_without_end_takes_no_memory(shown: Finished) -> None:
    for rank in (0, 1):
        parts = re.findall(rf"\[rank {rank}\] (y+)$", shown.stdout, re.MULTILINE)
        assert sum(map(len, parts)) == 200_000


def test_much_is_neither_lost_nor_a_hang(shown: Finished) -> None:
    numbers = re.findall(r"\[rank 0\] much (\d+)$", shown.stdout, re.MULTILINE)
    assert numbers == [str(number) for number in range(20_000)]


def test_ranks_of_other_worlds_and_the_last_teardown(shown: Finished) -> None:
    for rank in range(4):
        assert f"[rank {rank}] one of four\n" in shown.stdout
    assert shown.stdout.count("] in the last teardown\n") == 2
