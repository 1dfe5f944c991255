"""Measure, and print tables: ``python -m benchmarks [PART ...] [--quick] [--write]``.

Parts: ``costs`` (of a test and of a session, beside the alternatives), ``warm`` (of a warm
test in processor time, beside torchrun), ``spawns`` (of a test that
calls ``mp.spawn``, its processes served and not), ``unused`` (of the
plugin where there is no ddp test), ``profiles`` (where the time of a warm test goes),
``overhead`` (of what watches a rank), ``comms`` (of an open block of ``ddp.comms``), ``verdicts``
(from a hang to its verdict), ``startup`` (of ranks, and their memory), ``machines`` (of ranks on
other machines, for pytest and its coordinator), ``spread`` (of a test on two machines, beside one),
``memory`` (of a shared cache), ``worlds`` (of a test in several worlds), ``explored`` (of runs that
are recorded, or in which a thread is held). All of them without a name. ``--quick`` measures less,
to see that all works; ``--write`` puts each table into docs/benchmarks.md as soon as it is there;
other options go to the part.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import TextIO

from benchmarks import (
    comms,
    explored,
    machines,
    memory,
    overhead,
    profiles,
    sessions,
    spawns,
    spread,
    startup,
    verdicts,
    warm,
    worlds,
)

PARTS: dict[str, Callable[[Sequence[str]], None]] = {
    "costs": sessions.main,
    "warm": warm.main,
    "spawns": spawns.main,
    "unused": sessions.unused,
    "profiles": profiles.main,
    "overhead": overhead.main,
    "comms": comms.main,
    "verdicts": verdicts.main,
    "startup": startup.main,
    "machines": machines.main,
    "spread": spread.main,
    "memory": memory.main,
    "worlds": worlds.main,
    "explored": explored.main,
}
DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_END = "<!-- end of numbers -->\n"


class Both(io.TextIOBase):
    """Prints, and keeps what it printed."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        self._terminal.write(text)
        self._terminal.flush()
        return len(text)


def main(arguments: Sequence[str]) -> None:
    """Run the parts that are named."""
    names = list(takewhile(lambda word: not word.startswith("-"), arguments))
    options = [word for word in arguments[len(names) :] if word != "--write"]
    if names and "--help" not in options and (unknown := set(names) - PARTS.keys()):
        sys.exit(f"no part of the benchmarks: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if not names and {"-h", "--help"} & set(options):
        sys.exit(__doc__)
    for name in names or PARTS:
        with contextlib.redirect_stdout(Both(sys.stdout)) as printed:
            print(f"{machine()}\n")
            PARTS[name](options)
            print()
        if "--write" in arguments:
            DOCUMENT.write_text(with_numbers(DOCUMENT.read_text(), name, printed.text))


def with_numbers(page: str, part: str, numbers: str) -> str:
    """The page with the numbers of a part in the place of older ones.

    Raises:
        ValueError: the page has no place for them.
    """
    begin = f"<!-- numbers: python -m benchmarks {part} --write -->\n"
    before, mark, rest = page.partition(begin)
    _, end, after = rest.partition(_END)
    if not mark or not end:
        raise ValueError(f"no place for the numbers of {part}: {begin}")
    return f"{before}{mark}\n{numbers.strip()}\n\n{end}{after}"


def machine() -> str:
    """What the numbers are from."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "pytest"))
    return (
        f"{datetime.date.today()}, {_processor()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f} at the start; Linux {platform.release()}, "
        f"Python {platform.python_version()}, {versions}."
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main(sys.argv[1:])
