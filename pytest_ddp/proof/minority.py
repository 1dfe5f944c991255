"""Which ranks are the root cause, if ranks did different things at the same place. Pure.

What the test intended is unknown. If most ranks did the same, the others are named; else none is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_ddp.evidence.outcome import RootCause


def minority(kinds: Iterable[Sequence[int]], members: int) -> RootCause:
    """The ranks that differ from a strict majority, all in the same way.

    Args:
        kinds: for each thing that was done, the ranks that did it; to do nothing is one thing.
        members: the number of ranks, with those about which nothing is known.
    """
    found = sorted((kind for kind in kinds if kind), key=len)
    if members < 3:
        return RootCause((), "with fewer than three ranks there is no majority")
    if not found or 2 * len(found[-1]) <= members:
        return RootCause((), "no majority of the ranks did the same")
    if len(found) != 2:
        return RootCause((), "the ranks outside the majority did not do the same")
    return RootCause(tuple(sorted(found[0])))
