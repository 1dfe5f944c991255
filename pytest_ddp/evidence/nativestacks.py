"""Read the C++ stacks that torch prints to standard error when a fatal signal ends a rank.

Pure text work. torch prints a stack for each thread, hundreds of lines together, among
what the test itself printed; one line of them is worth showing.
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
"""Further lines of a stack, an empty one after its end among them."""
_ANY_FRAME = re.compile(r" ?frame #\d+: .*")
_IN_CHARGE = "c10::FatalSignalHandler::fatalSignalHandler"
"""A frame of the thread that got the signal; the others only print their stacks."""
_HANDLERS = ("c10::FatalSignalHandler::", "gsignal", "raise", "abort", "<unknown function>")
_OPERATOR = re.compile(r"at::_ops::(\w+)::(?:call|redispatch)\b")
_SYSTEM = re.compile(
    r".*/lib-dynload/.*|(?:.*/)?"
    r"(?:ld-linux[\w-]*|lib(?:c|pthread|dl|m|stdc\+\+|gcc_s|ffi|python)|python)[\d.-]*(?:\.so[\d.]*)?"
)
"""Libraries that crash for somebody else's reasons, or in the name of Python code."""


class Frame(NamedTuple):
    """A function on a C++ stack."""

    function: str
    """With its arguments, as in ``at::_ops::add_Tensor::call(at::Tensor const&)``."""
    library: str
    """Path of the shared object."""


def split(stderr: str) -> tuple[str, str]:
    """What a rank printed, without torch's stacks; and the stacks."""
    said: list[str] = []
    stacks: list[str] = []
    inside = False
    for line in stderr.splitlines(keepends=True):
        text = line.rstrip("\n")
        if _HEADER.fullmatch(text):
            inside = True
        elif not (_ANY_FRAME.fullmatch(text) or _OTHER.fullmatch(text)):
            inside = False
        (stacks if inside else said).append(line)
    return "".join(said), "".join(stacks)


def culprit(stacks: str) -> str:
    """What the crashing thread was inside: an ATen operator, else a function; or nothing."""
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
    """Its frames, innermost first; those of native code that Python code called."""
    threads: list[list[str]] = []
    for line in stacks.splitlines():
        if _HEADER.fullmatch(line):
            threads.append([])
        elif threads:
            threads[-1].append(line)
    lines = next((lines for lines in threads if any(_IN_CHARGE in line for line in lines)), [])
    # Outside of the Python frames lies only how the process was started.
    for line in takewhile(lambda line: not line.startswith("<omitting"), lines):
        if (frame := _FRAME.fullmatch(line)) is not None:
            yield Frame(frame["function"], frame["library"])


def _without_arguments(function: str) -> str:
    """The name before the first parenthesis that is not part of it."""
    name = re.sub(r"\(anonymous namespace\)", "<anonymous>", function)
    return name.partition("(")[0] + "()" if "(" in name else name
