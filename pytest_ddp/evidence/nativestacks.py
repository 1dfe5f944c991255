"""Read the C++ stacks that torch prints to standard error when a fatal signal ends a rank.

Pure text work. torch prints a stack for each thread, hundreds of lines together, mixed with the
output of the test itself; one line of them is worth showing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

_HEADER = re.compile(r"SIG[A-Z]+\(\d+\), PID: \d+, Thread \d+: *")
_FRAME = re.compile(
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


class Frame(NamedTuple):
    """A function on a C++ stack."""

    function: str
    """With its arguments, as in ``at::_ops::add_Tensor::call(at::Tensor const&)``."""
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


def _crashing_thread(stacks: str) -> Iterator[Frame]:
    """Its frames, innermost first, as far as the native code that Python code called."""
    threads: list[list[str]] = []
    for line in stacks.splitlines():
        if _HEADER.fullmatch(line):
            threads.append([])
        elif threads:
            threads[-1].append(line)
    lines = next((lines for lines in threads if any(_IN_CHARGE in line for line in lines)), [])
    # The frames outside of Python's only show how the process was started.
    for line in takewhile(lambda line: not line.startswith("<omitting"), lines):
        if (frame := _FRAME.fullmatch(line)) is not None:
            yield Frame(frame["function"], frame["library"])


def _without_arguments(function: str) -> str:
    """The name before the first parenthesis that is not part of it."""
    name = re.sub(r"\(anonymous namespace\)", "<anonymous>", function)
    return name.partition("(")[0] + "()" if "(" in name else name
