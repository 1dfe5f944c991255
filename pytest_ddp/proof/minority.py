"""Which ranks are the root cause, where ranks did unlike things at one place. Pure.

Nothing tells what was meant. Where most ranks did the same, the few others are named; else none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_ddp.evidence.outcome import RootCause


def minority(kinds: Iterable[Sequence[int]], members: int) -> RootCause:
    """The ranks that differ from a strict majority, all in the same way.

    Args:
        kinds: the ranks that did the same, for each thing that was done; to do nothing is one.
        members: how many ranks there are, those included of which nothing is known.
    """
    found = sorted((kind for kind in kinds if kind), key=len)
    if members < 3:
        return RootCause((), "with fewer than three ranks there is no majority")
    if not found or 2 * len(found[-1]) <= members:
        return RootCause((), "no majority of the ranks did the same")
    if len(found) != 2:
        return RootCause((), "the ranks outside the majority did not do the same")
    return RootCause(tuple(sorted(found[0])))
