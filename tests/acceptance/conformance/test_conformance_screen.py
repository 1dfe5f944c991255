"""The screen of a real run: below what pytest reports, in a file, on a terminal, under xdist."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
from pathlib import Path

import pyte
import pytest

from tests.acceptance.conformance.conformance_command import Done, run, written
from tests.environment import without_outer_run
from tests.warm import interpreter

SUITE = """
    import ast
    import warnings

    from ddp_conformance import Sampler, parametrize_with_checks


    def strided(case):
        return range(case.rank, case.size, case.world_size)


    def everything(case):
        return range(case.size)


    @parametrize_with_checks([Sampler(strided, {"exact", "uneven"})], world_size=[1])
    def test_kept(subject, check):
        check(subject)


    @parametrize_with_checks([Sampler(everything, {"exact", "uneven"})], world_size=[2])
    def test_broken(subject, check):
        check(subject)


    def test_warns():
        warnings.warn("of our own")
        warnings.warn_explicit("of a library", UserWarning, ast.__file__, 3)
"""

KEPT = """\
world size         1   seconds
strided
  SMP-01 *    passed ...
  SMP-02   not bound       0.0  SMP-02 does not bind the trait 'uneven'
  SMP-03   not bound       0.0  SMP-03 needs the trait 'evaluates'
  SMP-04   not bound       0.0  SMP-04 needs the trait 'shuffles'

group         guarantees  ranks  parts that keep them
SMP sampling  01          1      strided

checks: 1 passed, 3 not bound in ... s
other tests: 1 passed
"""

BROKEN = """\
SMP-01 *: In one epoch every sample MUST be delivered by at least one rank, and samples MUST NOT be
  repeated or left out beyond what the component declares.
  FAILED: everything, 2 ranks
    size 1, epoch 0: index 0 delivered by ranks 0 and 1
"""


def session(directory: Path, *arguments: str) -> Done:
    written(directory, test_suite=SUITE)
    return run(directory, "pytest", "-q", "-rfE", *arguments)


def lines_of(text: str) -> list[str]:
    """The screen: all lines below the title of its section."""
    return re.split(r"^=+ guarantees =+\n", text, flags=re.MULTILINE)[1].splitlines()


def assert_shows(shown: list[str], expected: str) -> None:
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    assert re.search(f"^{pattern}", "\n".join(shown) + "\n", re.MULTILINE), "\n".join(shown)


def test_a_run_without_a_fault_ends_in_one_screen(tmp_path: Path) -> None:
    done = session(tmp_path, "-k", "kept or warns")
    assert done.code == 0, done.text
    shown = lines_of(done.text)
    assert_shows(shown, KEPT)
    assert shown[-2:] == [
        "report: .pytest_cache/d/ddp-conformance/report.html, "
        ".pytest_cache/d/ddp-conformance/report.json",
        "1 of 1 guarantees are kept by 1 part",
    ]
    assert max(map(len, shown)) <= 100
    # Without the option for brevity the user's pytest shows what it always does.
    assert "of our own" in done.text
    assert "of a library" in done.text
    page = (tmp_path / ".pytest_cache/d/ddp-conformance/report.html").read_text()
    assert re.findall(r'<tr id="(.*?)">', page) == [f"SMP-0{n}" for n in range(1, 5)]
    assert "<h1>1 of 1 guarantees are kept by 1 part</h1>" in page


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadfile")])
def test_a_broken_guarantee_is_shown_in_full_and_counted(
    workers: tuple[str, ...], tmp_path: Path
) -> None:
    brief = ("--ddp-conformance-brief", "--ddp-conformance-report=report.json")
    done = session(tmp_path, "-p", "no:cacheprovider", *brief, *workers)
    assert done.code == pytest.ExitCode.TESTS_FAILED, done.text
    assert "\r" not in done.text
    assert not re.search(r"^[.sxFE]+ +\[", done.text, re.MULTILINE), "dots"
    assert "FAILED test_suite.py::test_broken[ws2-everything-SMP-01]" in done.text
    shown = lines_of(done.text)
    assert_shows(shown, BROKEN)
    assert shown[-3:] == [
        "warnings of other libraries, which the report has: 1",
        f"report: {tmp_path / 'report.html'}, {tmp_path / 'report.json'}".replace(
            f"{tmp_path}/", ""
        ),
        "0 of 1 guarantees are kept by 1 part; 1 broken or undecided",
    ]
    assert "of our own" in done.text
    assert "of a library" not in done.text
    (warning,) = done.report["warnings"]
    assert (warning["text"].endswith("UserWarning: of a library"), warning["count"]) == (True, 1)
    assert "UserWarning: of a library" in (tmp_path / "report.html").read_text()
    words = {(one["subject"], one["guarantee"]): one["verdict"] for one in done.report["verdicts"]}
    assert words["strided", "SMP-02"] == words["everything", "SMP-04"] == "not bound"


def test_the_command_ends_in_the_same_screen(tmp_path: Path) -> None:
    parts = SUITE.partition("    @parametrize")[0]
    command = ("ddp_conformance", "parts:strided", "--as", "sampler", "-t", "exact", "-t", "uneven")
    done = run(written(tmp_path, parts=parts), *command, "-w", "1")
    assert done.code == 0, done.text
    shown = lines_of(done.text)
    assert_shows(shown, KEPT.partition("other tests")[0])
    assert shown[-2:] == [
        "a report of each guarantee: --report=FILE",
        "1 of 1 guarantees are kept by 1 part",
    ]


def test_nothing_is_left_of_the_line_on_a_terminal(tmp_path: Path) -> None:
    written(tmp_path, test_suite=SUITE)
    master, slave = pty.openpty()
    arguments = ["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "-k", "kept"]
    environment = without_outer_run() | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    process = interpreter.start(
        arguments, cwd=tmp_path, env=environment, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    screen = pyte.Screen(100, 40)
    stream = pyte.Stream(screen)
    with contextlib.suppress(OSError):  # the end of a pty
        while select.select([master], [], [], 300.0)[0]:
            stream.feed(os.read(master, 65536).decode())
    os.close(master)
    assert process.wait(60) == 0
    shown = [line.rstrip() for line in screen.display]
    assert not [line for line in shown if re.search(r"\d+ of \d+ tests", line)]
    assert "1 of 1 guarantees are kept by 1 part" in shown
