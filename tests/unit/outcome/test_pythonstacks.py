"""Reading faulthandler's dumps, real ones and those of other versions."""

from __future__ import annotations

import faulthandler
import os
import signal
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.outcome import stack_dumps
from pytest_ddp.outcome.stack_dumps import (
    Frame,
    Stack,
    fatal_signal,
    is_user_file,
    is_whole,
    main_stack,
    parse_stacks,
    shorten,
    trim,
    user_line,
)
from tests.unit.handmade import SITE, stacks

USER = ("/home/me/tests/test_sum.py", 33, "test_sum")
TORCH = (f"{SITE}/torch/distributed/distributed_c10d.py", 3252, "all_reduce")
STDLIB = (sysconfig.get_path("stdlib") + "/threading.py", 327, "wait")
HELPER = ("/home/me/tests/helper.py", 4, "fetch")
THREAD = "Thread 0x00007f5c8a7fb111"

SEGFAULT_311 = f"""\
Fatal Python error: Segmentation fault

Thread 0x00007fd9cf01c6c0 (most recent call first):
  File "{STDLIB[0]}", line 327 in wait
  File "/home/me/tests/helper.py", line 4 in fetch

Current thread 0x00007fd9cfc6db80 (most recent call first):
  File "/home/me/tests/test_sum.py", line 33 in test_sum
  File "{SITE}/_pytest/python.py", line 167 in pytest_pyfunc_call
  ...

Extension modules: numpy._core._multiarray_umath, torch._C, torch._C._fft (total: 3)
"""

SEGFAULT_314 = f"""\
Fatal Python error: Segmentation fault

Current thread 0x00007fd9cfc6db80 [MainThread] (most recent call first):
  Garbage-collecting
  File "/home/me/tests/test_sum.py", line 33 in test_sum

Current thread's C stack trace (most recent call first):
  Binary file "{SITE}/torch/lib/libc10.so", at +0x8f0
  Binary file "/lib/x86_64-linux-gnu/libc.so.6", at +0x3c050
  <truncated rest of calls>

Extension modules: torch._C (total: 1)
"""

NO_PYTHON_FRAME = """\
Fatal Python error: Aborted

Current thread 0x00007fd9cfc6db80 (most recent call first):
  <no Python frame>
"""


def frames(*places: tuple[str, int, str]) -> tuple[Frame, ...]:
    return tuple(Frame(*place) for place in places)


# ------------------------------------------------------------------ parsing


def test_no_dump() -> None:
    assert parse_stacks("") == ()
    assert parse_stacks("Extension modules: a, b (total: 2)\nnothing\n  File\n") == ()
    assert main_stack("noise\n") == ()


def test_fatal_error_with_threads() -> None:
    (dump,) = parse_stacks(SEGFAULT_311)
    assert dump.title == "Fatal Python error: Segmentation fault"
    assert dump.fatal
    other, current = dump.stacks
    assert other == Stack("0x00007fd9cf01c6c0", False, frames(STDLIB, HELPER))
    assert current.thread == "0x00007fd9cfc6db80"
    assert current.current
    assert current.frames[0] == Frame(*USER)
    assert len(current.frames) == 2


def test_thread_names_and_c_stacks_of_newer_versions() -> None:
    (dump,) = parse_stacks(SEGFAULT_314)
    assert dump.stacks == (Stack("0x00007fd9cfc6db80", True, frames(USER)),)


def test_thread_without_python_frames() -> None:
    (dump,) = parse_stacks(NO_PYTHON_FRAME)
    assert dump.stacks[0].frames == ()
    assert dump.main() is None
    assert main_stack(NO_PYTHON_FRAME) == ()


def test_unknown_file_and_line() -> None:
    text = "Stack (most recent call first):\n  File ???, line ??? in ???\n"
    assert parse_stacks(text)[0].stacks == (Stack("", True, (Frame("???", 0, "???"),)),)


def test_quotes_and_words_of_the_format_inside_names() -> None:
    odd = ('/home/me/a", line 7 in "b/test_x.py', 3, "<listcomp>")
    assert main_stack(stacks(odd, machinery=False)) == frames(odd)


def test_dumps_one_after_another() -> None:
    asked = stacks(USER) + "\n"
    alone = stacks(HELPER, header="Stack", machinery=False)
    fatal = stacks(TORCH, USER, title="Fatal Python error: Aborted")
    dumps = parse_stacks(asked + asked + alone + alone + fatal)
    assert [dump.title for dump in dumps] == ["", "", "", "", "Fatal Python error: Aborted"]
    assert [len(dump.stacks) for dump in dumps] == [1] * 5
    assert [dump.stacks[0].frames[0] for dump in dumps] == [
        Frame(*place) for place in (USER, USER, HELPER, HELPER, TORCH)
    ]


def test_lone_stack_between_dumps_of_threads() -> None:
    text = stacks(USER) + stacks(HELPER, header="Stack") + stacks(TORCH)
    assert [len(dump.stacks) for dump in parse_stacks(text)] == [1, 1, 1]


def test_dump_after_a_deadline_has_a_title_but_is_not_fatal() -> None:
    (dump,) = parse_stacks("Timeout (0:00:05)!\n" + stacks(USER, header=THREAD))
    assert dump.title == "Timeout (0:00:05)!"
    assert not dump.fatal


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters='"'))
            .filter(bool)
            .map(lambda name: f"/src/{name}.py"),
            st.integers(0, 10**6),
            st.from_regex(r"[a-z_]\w{0,9}|<lambda>|<module>", fullmatch=True),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_every_frame_is_read_back(places: list[tuple[str, int, str]]) -> None:
    assert main_stack(stacks(*places, machinery=False)) == frames(*places)


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    for dump in parse_stacks(text + "\n" + stacks(USER) + text):
        dump.main()


# ------------------------------------------------------------------ which thread


def test_fatal_error_is_located_by_the_current_thread() -> None:
    text = (
        stacks(TORCH, USER, header=THREAD, title="Fatal Python error: Bus error")
        + "\n"
        + stacks(HELPER, machinery=False)
    )
    assert main_stack(text) == frames(HELPER)


def test_fatal_error_outside_python_is_located_by_the_test_thread() -> None:
    """gloo aborts in a thread of its own, which has no Python frame."""
    text = (
        stacks(USER, header=THREAD, title="Fatal Python error: Aborted")
        + "\n"
        + stacks(HELPER, header="Thread 0x00007f5c8a7fb222", machinery=False)
    )
    assert main_stack(text)[0] == Frame(*USER)


def test_dump_on_request_is_located_by_the_test_thread() -> None:
    """The signal may be taken by any thread."""
    text = stacks(USER, header=THREAD) + "\n" + stacks(HELPER, machinery=False)
    assert main_stack(text)[0] == Frame(*USER)


def test_without_pytest_the_current_thread_decides() -> None:
    """A stack of more than 100 calls is cut before it reaches pytest."""
    text = stacks(HELPER, machinery=False) + "\n" + stacks(USER, header=THREAD, machinery=False)
    assert main_stack(text) == frames(HELPER)


def test_without_anything_the_oldest_thread_decides() -> None:
    text = (
        stacks(HELPER, header=THREAD, machinery=False)
        + "\n"
        + stacks(USER, header="Thread 0x00007f5c8a7fb222", machinery=False)
    )
    assert main_stack(text) == frames(USER)


def test_dump_is_whole_where_it_has_the_frames_that_run_the_test() -> None:
    beside = stacks(HELPER, header=THREAD, machinery=False)
    assert not is_whole("")
    assert not is_whole(beside)
    assert is_whole(beside + stacks(USER))
    assert not is_whole(beside + stacks(USER) + beside)  # the second dump has begun
    assert is_whole(stacks(*[HELPER] * 100, machinery=False))


def test_last_dump_with_a_frame_decides() -> None:
    assert main_stack(stacks(HELPER) + stacks(USER))[0] == Frame(*USER)
    assert main_stack(stacks(HELPER) + NO_PYTHON_FRAME)[0] == Frame(*HELPER)


# ------------------------------------------------------------------ whose code


def test_innermost_user_line() -> None:
    inner = (f"{SITE}/pluggy/_callers.py", 121, "_multicall")
    assert user_line(frames(STDLIB, TORCH, inner, HELPER, USER)) == Frame(*HELPER)
    assert user_line(frames(STDLIB, TORCH)) is None
    assert user_line(()) is None


@pytest.mark.parametrize(
    "file",
    [
        "",
        "???",
        "<string>",
        "<frozen importlib._bootstrap>",
        STDLIB[0],
        sysconfig.get_path("platstdlib") + "/lib-dynload/x.py",
        os.path.relpath(STDLIB[0]),
        TORCH[0],
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "../../venv/lib/python3.11/site-packages/torch/nn/modules/module.py",
        pytest.__file__,
        str(Path(__file__).parents[3] / "pytest_ddp" / "fixture.py"),
    ],
)
def test_not_the_user_s_code(file: str) -> None:
    assert not is_user_file(file)


@pytest.mark.parametrize(
    "file", [__file__, "tests/test_a.py", "/home/me/torch/train.py", "/srv/pytest_ddp_user/a.py"]
)
def test_the_user_s_code(file: str) -> None:
    assert is_user_file(file)


def test_trimmed_of_machinery() -> None:
    text = stacks(STDLIB, TORCH, USER)
    assert trim(main_stack(text)) == frames(STDLIB, TORCH, USER)


def test_trimmed_of_wrappers_and_of_how_the_rank_was_started() -> None:
    wrapper = (f"{SITE}/torch/distributed/c10d_logger.py", 83, "wrapper")
    started = ("<string>", 1, "<module>")
    whole = main_stack(stacks(TORCH, wrapper, USER))
    assert trim((*whole, Frame(*started))) == frames(TORCH, USER)
    assert trim(frames(TORCH, wrapper, USER, started)) == frames(TORCH, USER, started)


def test_trimmed_stack_keeps_the_fixture_s_operations() -> None:
    """The fixture's operations are what the test called, and show what it waits for."""
    barrier = (f"{SITE}/pytest_ddp/fixture.py", 64, "barrier")
    inner = (f"{SITE}/pytest_ddp/fixture.py", 95, "_exchange")
    link = (f"{SITE}/pytest_ddp/rank/link.py", 40, "exchange")
    assert trim(frames(link, inner, barrier, USER)) == frames(barrier, USER)


def test_trimmed_stack_is_never_empty() -> None:
    machinery = main_stack(stacks())
    assert machinery
    assert trim(machinery) == machinery
    assert trim(()) == ()


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (TORCH[0], "torch/distributed/distributed_c10d.py"),
        ("../venv/lib/python3.11/site-packages/torch/a.py", "torch/a.py"),
        (STDLIB[0], "threading.py"),
        (str(Path.cwd() / "tests" / "a.py"), os.path.join("tests", "a.py")),
        ("/home/me/a.py", "/home/me/a.py"),
        (f"{Path.cwd()}-other/a.py", f"{Path.cwd()}-other/a.py"),
        ("tests/a.py", "tests/a.py"),
        ("<string>", "<string>"),
    ],
)
def test_shortened_path(file: str, shown: str) -> None:
    assert shorten(file) == shown


def test_shortened_path_of_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is short also where it is installed from a checkout."""
    monkeypatch.chdir(tmp_path)
    assert shorten(stack_dumps.__file__) == "pytest_ddp/outcome/stack_dumps.py"


def test_frame_as_text() -> None:
    assert str(Frame(*TORCH)) == "torch/distributed/distributed_c10d.py:3252 in all_reduce"
    assert str(Frame("tests/a.py", 3, "")) == "tests/a.py:3"


# ------------------------------------------------------------------ real dumps


def dumped(path: Path, dump: Callable[[int], None]) -> str:
    with path.open("wb") as stream:
        dump(stream.fileno())
    return path.read_text()


def test_real_dump_of_all_threads(tmp_path: Path) -> None:
    waiting, leave = threading.Event(), threading.Event()

    def wait_in_thread() -> None:
        waiting.set()
        leave.wait()

    thread = threading.Thread(target=wait_in_thread)
    thread.start()
    waiting.wait()
    text = dumped(tmp_path / "all", lambda fd: faulthandler.dump_traceback(fd, all_threads=True))
    leave.set()
    thread.join()
    (dump,) = parse_stacks(text)
    main = dump.main()
    assert main is not None
    assert main.current
    assert len(dump.stacks) >= 2
    telling = [user_line(stack.frames) for stack in dump.stacks if not stack.current]
    assert "wait_in_thread" in {frame.function for frame in telling if frame}
    line = user_line(main.frames)
    assert line is not None
    assert (line.file, line.function) == (__file__, "<lambda>")
    assert not any("_pytest" in frame.file for frame in trim(main.frames))


def test_real_dump_of_a_lone_stack(tmp_path: Path) -> None:
    text = dumped(tmp_path / "one", lambda fd: faulthandler.dump_traceback(fd, all_threads=False))
    (dump,) = parse_stacks(text)
    assert dump.stacks[0].thread == ""
    assert dump.stacks[0].current


@pytest.mark.parametrize(
    ("title", "number"),
    [
        ("Segmentation fault", signal.SIGSEGV),
        ("Bus error", signal.SIGBUS),
        ("Floating-point exception", signal.SIGFPE),
        ("Illegal instruction", signal.SIGILL),
        ("Aborted", signal.SIGABRT),
        ("_PyEval_EvalFrameDefault: Cannot recover from stack overflow.", signal.SIGABRT),
    ],
)
def test_fatal_signal(title: str, number: int) -> None:
    stack = 'Current thread 0x01 (most recent call first):\n  File "/src/a.py", line 1 in f\n'
    asked = 'Stack (most recent call first):\n  File "/src/a.py", line 1 in f\n'
    assert fatal_signal(f"{asked}Fatal Python error: {title}\n\n{stack}") == number
    assert fatal_signal(f"Fatal Python error: {title}\n\n{stack}{asked}") is None


def test_no_fatal_signal() -> None:
    assert fatal_signal("") is None
    assert fatal_signal("Stack (most recent call first):\n") is None
