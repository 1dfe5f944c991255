"""Parse the output of faulthandler, and find the line that the user wants to see.

Pure text work on the stacks of a rank that is dead or stuck. Its files hold several dumps one after
another: SIGUSR1, SIGTERM, a fatal signal and an exit write one each.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from pytest_ddp.protocol.rank_status import CodeLine
from pytest_ddp.system.stdlib import os, signal

_THREAD = re.compile(
    r"(?P<current>Current t|T)hread (?P<id>0x[0-9a-f]+)(?: \[.*\])? \(most recent call first\):"
)
_FRAME = re.compile(
    r"  File (?:\"(?P<file>.*)\"|\?\?\?), line (?P<line>\d+|\?\?\?) in (?P<name>.*)"
)
_CALL_OF_TRACEBACK = re.compile(r'^  File "(.*)", line (\d+), in (.*)', re.MULTILINE)
_ALONE = "Stack (most recent call first):"
_TITLE = re.compile(r"Fatal Python error: .*|Timeout \(.*\)!")
_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]", re.DOTALL)
_FATAL = {
    signal.SIGSEGV: "Segmentation fault",
    signal.SIGBUS: "Bus error",
    signal.SIGFPE: "Floating",
    signal.SIGILL: "Illegal instruction",
}
_DEEPEST = 100
"""Calls of a stack that faulthandler shows."""
_OURS = os.path.dirname(os.path.dirname(__file__))
_OF_GROUPS = "/torch/distributed/distributed_c10d.py"
_FIXTURE = "/pytest_ddp/fixture.py"
_RUNNERS = ("/_pytest/runner.py", "/_pytest/python.py", "/pytest_ddp/rank/runner.py")


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    file: str
    """The file as the code object has it; faulthandler escapes what is not ASCII and cuts at
    500."""
    line: int
    """Counted from 1; 0 where the interpreter did not know it."""
    function: str
    """Empty for a frame of a report, which has only file and line."""

    @property
    def short(self) -> CodeLine:
        """The line for readers, with a short name of its file."""
        return CodeLine(shorten(self.file), self.line, self.function)

    def __str__(self) -> str:
        return str(self.short)


@dataclass(frozen=True, slots=True)
class Stack:
    """One thread's Python stack."""

    thread: str
    """The thread's identity in hexadecimal; empty if it is not in the dump."""
    current: bool
    """True for the thread that got the signal, if Python code was running in it."""
    frames: tuple[Frame, ...]
    """Most recent call first; empty for a thread without a Python frame."""

    @property
    def runs_test(self) -> bool:
        """True for the thread in which pytest runs the test."""
        return any(map(_runs_tests, self.frames))

    @property
    def is_relevant(self) -> bool:
        """True for a thread in the user's code, or that waits for ranks, as one of an executor."""
        return user_line(self.frames) is not None or any(map(_waits_for_ranks, self.frames))


@dataclass(frozen=True, slots=True)
class Dump:
    """All stacks that faulthandler wrote at one moment."""

    title: str
    """``Fatal Python error: Segmentation fault`` and the like; empty for a dump on request."""
    stacks: tuple[Stack, ...]

    @property
    def fatal(self) -> bool:
        """True if the process died of the cause of this dump."""
        return self.title.startswith("Fatal")

    @property
    def signal(self) -> int:
        """The signal of a fatal dump, from its title."""
        words = self.title.partition(": ")[2]
        # The interpreter's own fatal errors end in an abort.
        return next((n for n, name in _FATAL.items() if words.startswith(name)), signal.SIGABRT)

    def main(self) -> Stack | None:
        """The stack that shows what the test was doing; None without any frame.

        After a fatal signal that is the stack of the thread that got it. In other dumps, and if
        that thread runs no Python code, it is that of the thread in which pytest runs the test.
        """
        stacks = [stack for stack in self.stacks if stack.frames]
        current = [stack for stack in stacks if stack.current]
        runner = [stack for stack in stacks if stack.runs_test]
        # faulthandler lists the oldest thread, the main one, last.
        preferred = (current, runner) if self.fatal else (runner, current)
        return next((found[-1] for found in (*preferred, stacks) if found), None)

    def shown(self) -> tuple[Stack, ...]:
        """The stacks for readers: the main one, and those of relevant threads; or none at all."""
        main = self.main()
        if main is None:
            return ()
        return main, *(other for other in self.stacks if other is not main and other.is_relevant)


def parse_stacks(text: str) -> tuple[Dump, ...]:
    """The dumps in ``text``, oldest first; other lines are skipped."""
    dumps: list[tuple[str, list[tuple[str, bool, list[Frame]]]]] = []
    title: str | None = None
    seen: set[str] = set()
    for line in text.splitlines():
        if _TITLE.fullmatch(line):
            title = line
        elif (thread := _THREAD.fullmatch(line)) or line == _ALONE:
            identity = thread["id"] if thread else ""
            # A thread is in a dump once, and a stack without a thread is a dump of its own.
            if title is not None or not dumps or not identity or {identity, ""} & seen:
                dumps.append((title or "", []))
                title, seen = None, set()
            seen.add(identity)
            current = thread is None or thread["current"].startswith("C")
            dumps[-1][1].append((identity, current, []))
        elif dumps and (frame := _FRAME.fullmatch(line)):
            dumps[-1][1][-1][2].append(_frame(frame))
    return tuple(
        Dump(title, tuple(Stack(name, current, tuple(frames)) for name, current, frames in stacks))
        for title, stacks in dumps
    )


def main_stack(text: str) -> tuple[Frame, ...]:
    """The main stack of the last dump that has one, most recent call first."""
    dump = _last_with_main(text)
    main = dump.main() if dump is not None else None
    return () if main is None else main.frames


def test_stack(text: str) -> tuple[Frame, ...]:
    """The stack of the thread that runs the test, in the same dump as :func:`main_stack`."""
    dump = _last_with_main(text)
    stacks = dump.stacks if dump is not None else ()
    return next((stack.frames for stack in stacks if stack.runs_test), ())


def shown_stacks(text: str) -> tuple[Stack, ...]:
    """What :meth:`Dump.shown` has of the last dump with a main stack."""
    dump = _last_with_main(text)
    return () if dump is None else dump.shown()


def is_of_groups(frame: Frame) -> bool:
    """True for a frame of the public functions of torch.distributed."""
    return frame.file.endswith(_OF_GROUPS)


def is_outside_test_thread(text: str) -> bool:
    """True if a fatal signal hit another thread than the test's, outside of the user's code."""
    dump = _last_with_main(text)
    main = dump.main() if dump is not None else None
    return main is not None and not main.runs_test and user_line(main.frames) is None


def _last_with_main(text: str) -> Dump | None:
    dumps = reversed(parse_stacks(text))
    return next((dump for dump in dumps if dump.main() is not None), None)


def is_endless(frames: Sequence[Frame]) -> bool:
    """True for a stack that is so deep that faulthandler has cut it."""
    return len(frames) >= _DEEPEST


def is_whole(text: str) -> bool:
    """True if the last dump reaches the frames that run the test; one that is cut off counts too.

    faulthandler lists the main thread last and its outermost frames at the end.
    """
    dumps = parse_stacks(text)
    return bool(dumps) and any(s.runs_test or is_endless(s.frames) for s in dumps[-1].stacks)


def user_line(frames: Iterable[Frame]) -> Frame | None:
    """The innermost frame of the user's own code; None if there is none."""
    return next((frame for frame in frames if is_user_file(frame.file)), None)


def last_place(seen: CodeLine | None, begun: CodeLine | None) -> tuple[str, CodeLine] | None:
    """The place that a rank noted last; one in the user's code, if there is one.

    Args:
        seen: where a probe found it; None if none did.
        begun: the place that began its last phase; None if unknown.

    Returns:
        words for the kind of place, and the place with a short name of its file; None if there is
        none.
    """
    noted = (("last seen at", seen), ("begun at", begun))
    places = [(words, place) for words, place in noted if place is not None]
    own = [(words, place) for words, place in places if is_user_file(place.file)]
    return next(((words, short_line(place)) for words, place in own or places), None)


def trim(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The stack without frames of pytest and this plugin; never empty if ``frames`` is not."""
    # The frames outside of the runner only show how the rank was started or forked.
    started = [number for number, frame in enumerate(frames) if _runs_tests(frame)]
    forked = [number for number, frame in enumerate(frames) if _begins_process(frame)]
    end = min(started[-1:] + forked[:1], default=len(frames))
    kept = tuple(frame for frame in frames[:end] if not _is_machinery(frame))
    return kept or tuple(frames)


def fatal_signal(text: str) -> int | None:
    """The signal that ended the process, from its last dump; None for another end."""
    dumps = parse_stacks(text)
    if not dumps or not dumps[-1].fatal:
        return None
    return dumps[-1].signal


def is_user_file(file: str) -> bool:
    """False for the standard library, installed packages, pytest and this plugin."""
    if not file or file.startswith(("<", "???")) or _PACKAGES.match(file):
        return False
    file = os.path.abspath(file)
    return not _below(file, (*_standard_library(), *_packages("torch", *_MACHINERY)))


def shorten(file: str) -> str:
    """``file`` for readers: relative to the working directory, or from its package on."""
    short = _PACKAGES.sub("", file)
    if short != file:
        return short
    for folder in (str(Path.cwd()), *_standard_library()):
        if _below(file, (folder,)):
            return file[len(folder) + 1 :]
    if _below(file, (_OURS,)):
        return file[len(os.path.dirname(_OURS)) + 1 :]
    return file


def short_line(line: CodeLine) -> CodeLine:
    """``line`` for readers, with :func:`shorten` of its file."""
    return replace(line, file=shorten(line.file))


def short_text(line: CodeLine | None) -> str:
    """``line`` for readers, as text; empty if it is not known."""
    return "" if line is None else str(short_line(line))


_MACHINERY = ("pytest_ddp", "_pytest", "pytest", "pluggy")


def _is_machinery(frame: Frame) -> bool:
    file = frame.file
    if file.endswith(_FIXTURE):
        # The test called the operations of the ddp fixture, and they show where it waits.
        return frame.function.startswith("_")
    if file.endswith("/torch/distributed/c10d_logger.py"):
        return True
    inside = _PACKAGES.sub("", file) if _PACKAGES.match(file) else ""
    return inside.startswith(tuple(f"{name}/" for name in _MACHINERY)) or _below(
        file, _packages(*_MACHINERY)
    )


def _begins_process(frame: Frame) -> bool:
    return frame.function == "_bootstrap" and frame.file.endswith("/multiprocessing/process.py")


def _waits_for_ranks(frame: Frame) -> bool:
    return frame.file.endswith((_OF_GROUPS, _FIXTURE))


def _runs_tests(frame: Frame) -> bool:
    return frame.file.endswith(_RUNNERS)


def _frame(match: re.Match[str]) -> Frame:
    line = match["line"]
    return Frame(match["file"] or "???", int(line) if line.isdecimal() else 0, match["name"])


def imported_file(text: str) -> str:
    """The user's file with the outermost import that was running; empty if there was none."""
    files = (frame.file for frame in reversed(main_stack(text)) if frame.function == "<module>")
    return next((shorten(file) for file in files if is_user_file(file)), "")


def last_exception(text: str) -> str:
    """The last line of a Python traceback in ``text``; empty if there is none."""
    _, found, traceback = text.rpartition("Traceback (most recent call last):")
    lines = [line for line in traceback.splitlines() if line and not line.startswith(" ")]
    return lines[0] if found and lines else ""


def raised_at(text: str) -> Frame | None:
    """The innermost line of the user's own code in the last Python traceback in ``text``."""
    _, _, traceback = text.rpartition("Traceback (most recent call last):")
    calls = _CALL_OF_TRACEBACK.findall(traceback)
    return user_line(Frame(file, int(line), name) for file, line, name in reversed(calls))


def _below(file: str, folders: Iterable[str]) -> bool:
    return any(file.startswith(folder + os.sep) for folder in folders)


@functools.cache
def _standard_library() -> tuple[str, ...]:
    named = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    beside = {os.path.dirname(os.__file__), *map(os.path.realpath, named)}
    # lib-dynload and the like are below the library, so the longest goes first.
    return tuple(sorted(named | beside, key=len, reverse=True))


@functools.cache
def _packages(*names: str) -> tuple[str, ...]:
    # Found without an import, since this runs in the user's pytest process.
    folders: set[str] = set()
    for name in names:
        spec = importlib.util.find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            folders |= {folder, os.path.realpath(folder)}
    return tuple(sorted(folders))


# ------------------------------------------------------------------
# Read the C++ stacks that torch prints to standard error when a fatal signal ends a rank.
#
# Pure text work. torch prints a stack for each thread, hundreds of lines together, mixed with the
# output of the test itself; one line of them is worth showing.

_HEADER = re.compile(r"SIG[A-Z]+\(\d+\), PID: \d+, Thread \d+: *")
_NATIVE_FRAME = re.compile(
    r" ?frame #\d+: (?P<function>.*) \+ 0x[0-9a-f]+ \(0x[0-9a-f]+ in (?P<library>.*)\)"
)
_OTHER = re.compile(r"<omitting python frames>|signal lost waiting for stacktrace .*|")
"""Other lines of a stack; also the empty one after its end."""
_ANY_FRAME = re.compile(r" ?frame #\d+: .*")
_IN_CHARGE = "c10::FatalSignalHandler::fatalSignalHandler"
"""A frame only on the stack of the thread that got the signal; the others just print theirs."""
_HANDLERS = ("c10::FatalSignalHandler::", "gsignal", "raise", "abort", "<unknown function>")
_OPERATOR = re.compile(r"at::_ops::(\w+)::(?:call|redispatch)\b")
_SYSTEM = re.compile(
    r".*/lib-dynload/.*|(?:.*/)?"
    r"(?:ld-linux[\w-]*|lib(?:c|pthread|dl|m|stdc\+\+|gcc_s|ffi|python)|python)[\d.-]*(?:\.so[\d.]*)?"
)
"""Libraries whose crash is the fault of their caller, which may be Python code."""


class NativeFrame(NamedTuple):
    """A function on a C++ stack."""

    function: str
    """The function with its arguments, as in ``at::_ops::add_Tensor::call(at::Tensor const&)``."""
    library: str
    """Path of the shared object."""


def split(stderr: str) -> tuple[str, str]:
    """Split a rank's output into that without torch's stacks, and the stacks."""
    printed: list[str] = []
    stacks: list[str] = []
    inside = False
    for line in stderr.splitlines(keepends=True):
        text = line.rstrip("\n")
        if _HEADER.fullmatch(text):
            inside = True
        elif not (_ANY_FRAME.fullmatch(text) or _OTHER.fullmatch(text)):
            inside = False
        (stacks if inside else printed).append(line)
    return "".join(printed), "".join(stacks)


def culprit(stacks: str) -> str:
    """The ATen operator that the crashing thread was in, else a function; empty if unknown."""
    frames = list(_crashing_thread(stacks))
    for frame in frames:
        if (operator := _OPERATOR.match(frame.function)) is not None:
            return f"the operator at::_ops::{operator[1]}::call"
    for frame in frames:
        if not frame.function.startswith(_HANDLERS) and not _SYSTEM.fullmatch(frame.library):
            library = frame.library.rpartition("/")[2]
            return f"{_without_arguments(frame.function)} of {library}"
    return ""


def _crashing_thread(stacks: str) -> Iterator[NativeFrame]:
    """The frames of the crashing thread, innermost first, as far as the native code that Python
    code called.
    """
    threads: list[list[str]] = []
    for line in stacks.splitlines():
        if _HEADER.fullmatch(line):
            threads.append([])
        elif threads:
            threads[-1].append(line)
    lines = next((lines for lines in threads if any(_IN_CHARGE in line for line in lines)), [])
    # The frames outside of Python's only show how the process was started.
    for line in takewhile(lambda line: not line.startswith("<omitting"), lines):
        if (frame := _NATIVE_FRAME.fullmatch(line)) is not None:
            yield NativeFrame(frame["function"], frame["library"])


def _without_arguments(function: str) -> str:
    """The name before the first parenthesis that is not part of it."""
    name = re.sub(r"\(anonymous namespace\)", "<anonymous>", function)
    return name.partition("(")[0] + "()" if "(" in name else name
