"""Programs of ranks in a line of text each, as the histories that their logs are read into.

``w`` is a collective of group ``w``, ``>1`` a send to rank 1, ``<0`` a receive from rank 0 and
``<*`` one from any, on the group ``world``; ``a:>1#7=8`` is of group ``a`` and has tag 7 and 8
bytes. ``w@1`` is of thread 1. What is issued is waited for at once, but ``w+`` is not: ``w-`` waits
for it. ``wait 1`` is thread 0 waiting for the last operation of thread 1. ``(`` and ``)`` enclose a
batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pytest_ddp.extensions.portable.issued import History, read

_MESSAGE = re.compile(r"(?:(\w+):)?([<>])(\d+|\*)(?:#(\d+))?(?:=(\d+))?")


def history(rank: int, program: str, members: Mapping[str, Sequence[int]]) -> History:
    """What the pytest process reads of a rank; each place of the text is a line.

    Args:
        rank: its number.
        program: the text.
        members: of each group; ``world`` has those of messages.
    """
    rows: list[list[object]] = []
    log: list[list[int]] = []
    last: dict[str, int] = {}
    batch = 0
    words = re.sub(r"([()])", r" \1 ", program.replace("wait ", "=")).split()
    number = -1
    for word in words:
        if word in "()":
            batch = int(word == "(")
            continue
        number += 1
        if word.startswith("="):
            log.append([-1, 0, last[f"@{word[1:]}"]])
            continue
        text, _, thread = word.partition("@")
        what, at = text.rstrip("+-"), int(thread or 0)
        if not text.endswith("-"):
            last[what] = last[f"@{at}"] = len(log)
            log.append([len(rows), at, batch < 2])
            batch += batch > 0
            group, ends, tag, nbytes = what, members.get(what, ()), None, 0
            if message := _MESSAGE.fullmatch(what):
                name, way, other, *numbers = message.groups()
                peer = -1 if other == "*" else int(other)
                group, (tag, nbytes) = name or "world", (int(one or 0) for one in numbers)
                ends = [rank, peer] if way == ">" else [peer, rank]
            everyone = list(members.get(group, ()))
            site = f"r{rank}:{number}"
            rows.append([group, ends, tag, group, everyone, batch > 0, what, site, nbytes])
        if not text.endswith("+"):
            log.append([-1, at, last[what]])
    return read(rank, {"rows": rows, "log": log, "used": [], "is_whole": True})


def histories(programs: Sequence[str], members: Mapping[str, Sequence[int]]) -> dict[int, History]:
    """The histories of all ranks, by rank."""
    return {rank: history(rank, program, members) for rank, program in enumerate(programs)}
