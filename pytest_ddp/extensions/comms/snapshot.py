"""What a block communicated as a small text file, and what has changed since. Imports no torch.

```
# ddp.comms: test_step; torch 2.13.0, world size 2
ranks 0-1
  step 1
    2 x (layers.*: all_gather 288 B world)
    2 x (layers.*: reduce_scatter AVG 288 B world)
```

Collectives of objects are left out, since their sizes vary with what is pickled.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

from pytest_ddp.extensions.comms.records import Record, shortened
from pytest_ddp.outcome.outcome import spans

_LONGEST = 8
"""The most operations in a repetition: as many as a layer may have."""
_REPEATED = re.compile(r"(\d+) x \((.*)\)$")
_WHAT = re.compile(
    r"(?P<operation>\S+(?: [A-Z_]+)?)(?: (?P<size>[\d.]+ (?:[KMG]i)?B))?"
    r"(?: (?P<dtype>bool|\w*(?:int|float|complex)\d\w*))? (?P<group>.+)"
)
_STAR = "# * torch asks for something else where tensors are not on a CPU"


class SnapshotLine(NamedTuple):
    """One operation of one rank."""

    step: int
    module: str
    """Its name with ``*`` for numbers, so that layers which do the same can be folded, or empty."""
    what: str
    site: str
    """File, line and function."""
    is_cpu_form: bool = False
    """Whether torch asks for it on a CPU only."""


Ranks: TypeAlias = Sequence[Sequence[SnapshotLine]]
"""The operations of each rank."""


def lines_of(records: Iterable[Record]) -> list[SnapshotLine]:
    """A rank's operations, in order."""
    return [
        SnapshotLine(
            record.step,
            _module(record),
            _what(record),
            f"{record.site} in {record.function}" if record.site else "",
            record.cpu_form,
        )
        for record in records
        if record.bytes is not None
    ]


def _module(record: Record) -> str:
    found = record.issued_in if record.belongs_to is None else record.belongs_to
    return "" if found is None else re.sub(r"\d+", "*", shortened(found))


def _what(record: Record) -> str:
    words = [record.operation + "*" * record.cpu_form]
    words += [record.reduce_op] if record.reduce_op not in (None, "SUM") else []
    words += [_exact(record.bytes)] if record.bytes else []
    words += [record.dtype] if record.dtype not in (None, "float32") else []
    return " ".join([*words, record.group])


def text_of(name: str, torch: str, ranks: Ranks) -> str:
    """The text of the file for a name, torch's version and the operations of all ranks."""
    lines = [f"# ddp.comms: {name}; torch {torch}, world size {len(ranks)}"]
    lines += [_STAR] if any(line.is_cpu_form for rank in ranks for line in rank) else []
    same: dict[tuple[tuple[int, str, str], ...], list[int]] = {}
    for rank, operations in enumerate(ranks):
        same.setdefault(tuple(line[:3] for line in operations), []).append(rank)
    for found, members in same.items():
        lines.append(("rank " if len(members) == 1 else "ranks ") + ",".join(spans(members)))
        for step, of_step in groupby(found, lambda fields: fields[0]):
            lines.append(f"  step {step}" if step else "  no step")
            names = [f"{module}: {what}" if module else what for _, module, what in of_step]
            lines += [f"    {line}" for line in _folded(names)]
        lines += [] if found else ["  nothing"]
    return "\n".join(lines) + "\n"


def difference(before: str, now: str, ranks: Ranks, path: str) -> str | None:
    """What has changed between two files, its first line in words; None if nothing has.

    Args:
        before: the file that there is.
        now: what it would be.
        ranks: what that was made of, for the lines of what is new.
        path: of the file.
    """
    left, right = _body(before), _body(now)
    if left == right:
        return None
    words = next(_changes(left, right, ranks), "the operations are the same, in another order")
    taken, running = _torch(before), _torch(now)
    if taken != running:
        words = f"taken with torch {taken}, this is {running}: {words}"
    shown = difflib.unified_diff(left, right, path, "this run", lineterm="", n=2)
    return "\n".join([words, *shown, "--ddp-update-comms writes it anew"])


def _changes(left: list[str], right: list[str], ranks: Ranks) -> Iterator[str]:
    """Each operation that there is more or less of, in words."""
    before, now = _unfolded(left), _unfolded(right)
    for what in now | before:
        more = now[what] - before[what]
        if more:
            each = divmod(abs(more), len(ranks))
            number, over = (abs(more), " over all ranks") if each[1] else (each[0], "")
            sites = max(
                ([line.site for line in rank if line.what == what] for rank in ranks), key=len
            )
            place = sites[-1].rpartition("/")[2] if sites and more > 0 else ""
            issued = f", issued at {place}" if place else ""
            yield f"{number} {'more' if more > 0 else 'less'} {_in_words(what)}{over}{issued}"


def _in_words(what: str) -> str:
    """``all_reduce of 4 B on dp``."""
    found = _WHAT.fullmatch(what)
    if found is None:
        return what
    of = " ".join(filter(None, (found["size"], found["dtype"])))
    return f"{found['operation']}{f' of {of}' if of else ''} on {found['group']}"


def _folded(lines: list[str]) -> Iterator[str]:
    """Repetitions, also of several lines, as one line."""
    place = 0
    while place < len(lines):
        length, times = max(_repetitions(lines, place), key=lambda found: found[0] * found[1])
        text = "; ".join(lines[place : place + length])
        yield text if times == 1 else f"{times} x ({text})"
        place += length * times


def _repetitions(lines: list[str], place: int) -> Iterator[tuple[int, int]]:
    """Length and number of each repetition that begins here."""
    yield 1, 1
    for length in range(1, _LONGEST + 1):
        unit, times = lines[place : place + length], 1
        while lines[place + length * times : place + length * (times + 1)] == unit:
            times += 1
        if times > 1:
            yield length, times


def _unfolded(body: list[str]) -> Counter[str]:
    """How often a file has each operation, over all ranks and modules."""
    found: Counter[str] = Counter()
    members = 1
    for line in body:
        if line.startswith("rank"):
            members = sum(map(_size, line.partition(" ")[2].split(",")))
        elif line.startswith("    "):
            repeated = _REPEATED.match(line.strip())
            times, inner = (int(repeated[1]), repeated[2]) if repeated else (1, line.strip())
            for one in inner.split("; "):
                found[one.rpartition(": ")[2]] += times * members
    return found


def _exact(size: int) -> str:
    """Bytes for people, in the largest unit in which four digits say all; different sizes have
    different texts."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        number = size / 1024**power
        if 1 <= number < 10_000 and float(f"{number:.4g}") == number:
            return f"{number:.4g} {unit}"
    return f"{size} B"


def _body(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def _torch(text: str) -> str:
    found = re.match(r"#.*; torch ([^,\s]+)", text)
    return found[1] if found else "?"


def _size(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1
