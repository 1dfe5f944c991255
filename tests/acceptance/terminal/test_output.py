"""What ranks print is captured per rank, shown once, and never changes the verdict."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import SPAWNED, UNDER_XDIST, Finished, Result, Suite

SOURCE = r"""
    import ctypes
    import logging
    import os
    import subprocess
    import sys

    import pytest
    import torch
    import torch.distributed as dist

    libc = ctypes.CDLL(None)
    ddp3 = pytest.mark.ddp(world_size=3)
    log = logging.getLogger("of the test")


    def print_much(rank):
        line = "x" * 99 + "\n"
        for _ in range(100_000 if rank == 1 else 1):
            sys.stdout.write(line)
        print(f"last line of {rank}")


    def write_invalid(rank):
        os.write(1, b"before \xff\xfe\xc3( after, of %d\n" % rank)


    def write_without_newline(rank):
        sys.stdout.write(f"no newline on {rank}")


    def write_from_c(rank):
        libc.puts(b"from C on %d" % rank)
        libc.fflush(None)


    def write_to_descriptor(rank):
        os.write(1, b"descriptor 1 of %d\n" % rank)
        os.write(2, b"descriptor 2 of %d\n" % rank)


    def write_to_stderr(rank):
        print(f"stderr of {rank}", file=sys.stderr)


    def write_log(rank):
        log.warning("logged by %d", rank)


    def write_in_subprocess(rank):
        subprocess.run(["echo", f"echoed by {rank}"], check=True)


    def write_nul_and_escapes(rank):
        print(f"\x1b[31mred\x1b[0m \0 \r tab\t end of {rank}")


    def write_surrogate(rank):
        sys.stdout.buffer.write("caf\u00e9 ".encode())
        sys.stdout.flush()
        print(f"smile \U0001f600 of {rank}")


    WRITERS = [
        print_much,
        write_invalid,
        write_without_newline,
        write_from_c,
        write_to_descriptor,
        write_to_stderr,
        write_log,
        write_in_subprocess,
        write_nul_and_escapes,
        write_surrogate,
    ]


    @ddp3
    @pytest.mark.parametrize("write", WRITERS)
    def test_passes(ddp, write):
        write(ddp.rank)


    @ddp3
    @pytest.mark.parametrize("write", WRITERS)
    def test_fails_on_rank_1(ddp, write):
        write(ddp.rank)
        assert ddp.rank != 1, "the failure"


    @ddp3
    @pytest.mark.parametrize("write", WRITERS)
    def test_fails_everywhere(ddp, write):
        write(ddp.rank)
        raise ValueError("the failure")


    @ddp3
    def test_same_output(ddp):
        print("the same line of all")
        print("an error line of all", file=sys.stderr)
        raise ValueError


    @ddp3
    def test_two_alike(ddp):
        print("line of rank 1" if ddp.rank == 1 else "line of the others")
        raise ValueError


    @ddp3
    @pytest.mark.parametrize("rank", range(3))
    def test_crash(ddp, rank):
        print(f"buffered, last words of {ddp.rank}")
        os.write(2, b"stderr words of %d\n" % ddp.rank)
        if ddp.rank == rank:
            os.abort()


    @pytest.fixture
    def talks(ddp):
        print(f"setting up {ddp.rank}")
        yield
        print(f"tearing down {ddp.rank}")


    @ddp3
    def test_phases(ddp, talks):
        print(f"calling {ddp.rank}")
        raise ValueError


    @ddp3
    def test_closes_descriptor_1(ddp):
        if ddp.rank == 1:
            os.close(1)


    @ddp3
    def test_last(ddp):
        ones = torch.ones(1)
        dist.all_reduce(ones)
        assert ones.item() == 3
"""

WRITTEN = {
    "print_much": ("stdout", "last line of {rank}\n"),
    "write_invalid": ("stdout", "after, of {rank}\n"),
    "write_without_newline": ("stdout", "no newline on {rank}"),
    "write_from_c": ("stdout", "from C on {rank}\n"),
    "write_to_descriptor": ("stdout", "descriptor 1 of {rank}\n"),
    "write_to_stderr": ("stderr", "stderr of {rank}\n"),
    "write_log": ("log", "logged by {rank}"),
    "write_in_subprocess": ("stdout", "echoed by {rank}\n"),
    "write_nul_and_escapes": ("stdout", "end of {rank}\n"),
    "write_surrogate": ("stdout", "smile \U0001f600 of {rank}\n"),
}


@pytest.fixture(scope="module")
def source(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("test_printing.py", SOURCE)
    return suite


@pytest.fixture(scope="module")
def failed(source: Suite) -> Finished:
    """Run with the default, output of the ranks that failed."""
    return source.run("--tb=short", timeout=120)


@pytest.fixture(scope="module")
def shown(source: Suite) -> dict[str, Finished]:
    """Run with each choice of whose output is shown."""
    return {
        choice: source.run(f"--ddp-output={choice}", "-k", "rank_1 and not much", timeout=60)
        for choice in ("failed", "all", "rank0")
    }


def section(result: Result, kind: str, ranks: str, when: str = "call") -> str:
    title = f"Captured {kind} {when} [{ranks}]"
    assert title in result.sections, list(result.sections)
    return result.sections[title]


@pytest.mark.parametrize("writer", WRITTEN)
def test_output_changes_no_pass(failed: Finished, writer: str) -> None:
    assert failed[f"test_passes[{writer}]"].verdict == "passed"


@pytest.mark.parametrize("writer", WRITTEN)
@pytest.mark.parametrize("name", ["test_fails_on_rank_1", "test_fails_everywhere"])
def test_output_changes_no_failure(failed: Finished, name: str, writer: str) -> None:
    result = failed[f"{name}[{writer}]"]
    assert result.verdict == "failed"
    assert "the failure" in result.phase("call").message


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("writer", WRITTEN)
def test_captured_for_each_rank(failed: Finished, writer: str, rank: int) -> None:
    kind, text = WRITTEN[writer]
    result = failed[f"test_fails_everywhere[{writer}]"]
    assert text.format(rank=rank) in section(result, kind, f"rank {rank}")
    for other in {0, 1, 2} - {rank}:
        assert text.format(rank=rank) not in section(result, kind, f"rank {other}")


@pytest.mark.parametrize("writer", WRITTEN)
def test_only_the_failed_rank_is_shown(failed: Finished, writer: str) -> None:
    kind, text = WRITTEN[writer]
    result = failed[f"test_fails_on_rank_1[{writer}]"]
    assert text.format(rank=1) in section(result, kind, "rank 1")
    assert not any("rank 0" in title or "rank 2" in title for title in result.sections)


def test_all_of_ten_megabytes_is_there(failed: Finished) -> None:
    text = section(failed["test_fails_on_rank_1[print_much]"], "stdout", "rank 1")
    head, _, rest = text.partition("[")
    left_out, _, tail = rest.partition(" characters left out]")
    assert len(head) + int(left_out) + len(tail) == 10_000_000 + len("last line of 1\n")
    assert tail.endswith("x\nlast line of 1\n")


def test_standard_error_is_apart(failed: Finished) -> None:
    result = failed["test_fails_on_rank_1[write_to_descriptor]"]
    assert section(result, "stdout", "rank 1") == "descriptor 1 of 1\n"
    assert section(result, "stderr", "rank 1") == "descriptor 2 of 1\n"


def test_output_stands_in_the_terminal(failed: Finished) -> None:
    assert "Captured stdout call [rank 1]" in failed.stdout
    assert "after, of 1" in failed.stdout
    assert "last line of 1" in failed.stdout


@pytest.mark.parametrize(
    ("kind", "text"), [("stdout", "the same line of all"), ("stderr", "an error line of all")]
)
def test_like_output_is_shown_once(failed: Finished, kind: str, text: str) -> None:
    result = failed["test_same_output"]
    assert section(result, kind, "ranks 0-2") == f"{text}\n"
    assert sum(text in content for content in result.sections.values()) == 1


def test_output_of_some_ranks_alike_is_shown_once(failed: Finished) -> None:
    result = failed["test_two_alike"]
    assert section(result, "stdout", "ranks 0, 2") == "line of the others\n"
    assert section(result, "stdout", "rank 1") == "line of rank 1\n"


@pytest.mark.parametrize("rank", range(3))
def test_last_words_of_a_crashed_rank(failed: Finished, rank: int) -> None:
    """What Python's own buffer held is lost with the process unless capture is unbuffered."""
    result = failed[f"test_crash[{rank}]"]
    assert result.verdict == "failed"
    assert f"stderr words of {rank}\n" in section(result, "stderr", f"rank {rank}")
    assert f"buffered, last words of {rank}\n" in section(result, "stdout", f"rank {rank}")


@pytest.mark.parametrize("when", ["setup", "call", "teardown"])
@pytest.mark.parametrize("rank", range(3))
def test_output_is_shown_by_phase(failed: Finished, when: str, rank: int) -> None:
    words = {"setup": "setting up", "call": "calling", "teardown": "tearing down"}[when]
    text = section(failed["test_phases"], "stdout", f"rank {rank}", when)
    assert text == f"{words} {rank}\n"


def test_later_tests_are_unharmed(failed: Finished) -> None:
    assert len(failed["test_closes_descriptor_1"].reports) == 3
    assert failed["test_last"].verdict == "passed", failed["test_last"].text


# ---------------------------------------------------------------- whose output


@pytest.mark.parametrize(("choice", "ranks"), [("failed", {1}), ("all", {0, 1, 2}), ("rank0", {0})])
def test_choice_of_ranks(shown: dict[str, Finished], choice: str, ranks: set[int]) -> None:
    for writer, (kind, _) in WRITTEN.items():
        if writer == "print_much":
            continue
        result = shown[choice][f"test_fails_on_rank_1[{writer}]"]
        assert result.verdict == "failed"
        titles = {title for title in result.sections if title.startswith(f"Captured {kind}")}
        assert titles == {f"Captured {kind} call [rank {rank}]" for rank in ranks}


PLAIN = """
    import os

    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_prints(ddp):
        # In one piece: where Python does not buffer, print writes the end of a line by itself.
        print(f"said by {ddp.rank}\\n", end="", flush=True)


    @pytest.mark.ddp(world_size=2)
    def test_fails(ddp):
        print(f"hidden words of {ddp.rank}")
        raise ValueError("the failure")


    @pytest.mark.ddp(world_size=2)
    def test_crashes(ddp):
        print(f"hidden words of {ddp.rank}")
        os.write(2, b"hidden words\\n")
        os._exit(1)
"""


@pytest.mark.skipif(UNDER_XDIST, reason="pytest-xdist takes its workers' standard output")
@pytest.mark.parametrize("flag", ["-s", "--capture=no"])
def test_no_capture(suite: Suite, flag: str) -> None:
    suite.write("test_plain.py", PLAIN)
    finished = suite.run(flag, "-k", "prints", timeout=30)
    assert finished["test_prints"].verdict == "passed"
    assert finished.stdout.count("said by 0\n") == 1
    assert finished.stdout.count("said by 1\n") == 1
    assert finished["test_prints"].sections == {}


def test_no_output_of_passed_tests(suite: Suite) -> None:
    suite.write("test_plain.py", PLAIN)
    finished = suite.run("-k", "prints", timeout=30)
    assert finished["test_prints"].verdict == "passed"
    assert "said by" not in finished.output


def test_output_of_passed_tests_on_request(suite: Suite) -> None:
    suite.write("test_plain.py", PLAIN)
    finished = suite.run("-k", "prints", "-rP", timeout=30)
    assert "said by 0" in finished.stdout
    assert "said by 1" in finished.stdout


def test_show_capture_no(suite: Suite) -> None:
    suite.write("test_plain.py", PLAIN)
    finished = suite.run("--show-capture=no", timeout=30)
    finished.assert_outcomes(passed=1, failed=2)
    assert not re.search(r"^hidden words", finished.stdout, re.MULTILINE)
    assert "the failure" in finished.stdout
    assert "exited with code 1" in finished.stdout


def test_python_level_capture(suite: Suite) -> None:
    """Output of a rank that lives is captured as under ``--capture=fd``."""
    suite.write("test_plain.py", PLAIN)
    finished = suite.run("--capture=sys", "-k", "fails", timeout=30)
    result = finished["test_fails"]
    assert section(result, "stdout", "rank 0") == "hidden words of 0\n"
    assert section(result, "stdout", "rank 1") == "hidden words of 1\n"


@pytest.mark.skipif(SPAWNED, reason="a spawned rank has no host whose buffers it could inherit")
def test_buffers_of_the_host_are_not_repeated(suite: Suite) -> None:
    """What stood unflushed in a buffer at the fork must not be written by every rank."""
    suite.write("conftest.py", 'import sys; sys.stdout.write("once while collecting ")\n')
    suite.write("test_plain.py", PLAIN)
    finished = suite.run("-k", "fails", "--ddp-output=all", timeout=30)
    result = finished["test_fails"]
    assert not any("while collecting" in text for text in result.sections.values())
