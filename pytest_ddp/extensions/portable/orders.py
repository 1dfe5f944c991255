"""Order between groups: whether two ranks issue what they have in common in one order.

Pure; imports no torch. The rule, with its sources:

- NCCL's user guide, "Using multiple NCCL communicators concurrently" (2.26 and later): "users must
  ensure the order of host-side launches matches for all devices"; before, all operations had to be
  serialized in one total order.
- ``torch.distributed.new_group``, "Safe concurrent usage" (2.13): "the user must ensure a globally
  consistent execution order of collectives across ranks".

So the order in which a rank's threads *issue* operations is compared, and waits do not mend it:
with ``a`` before ``b`` on one rank and ``b`` before ``a`` on another, one of the two has both in
flight and needs them to run at the same time, whatever it waits for. Operations on two ranks are
the same one if they are the n-th with their key: of a group for collectives, of a group, sender,
receiver and tag for messages. A message is of its two ends alone.

Happens-before on a rank is what is certain: the order of one thread, and what a thread issues after
it has waited for an operation of another thread. Operations of two threads without it may have been
ordered by a lock, a queue or a join, which are not seen: they are not compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias


class MatchKey(NamedTuple):
    """What operations are matched by between ranks."""

    kind: str
    """``collective`` or ``message``."""
    group: str
    made: int
    """Which group of that name."""
    tag: int
    members: tuple[int, ...]
    """Global ranks; of a message sender and receiver."""


class Issue(NamedTuple):
    """An operation that a rank has issued."""

    match_key: MatchKey
    name: str
    """For people: ``all_reduce on dp``."""
    site: str
    """``file:line``."""
    thread: int
    place: int
    """Which of its thread's it is; what is issued in one batch has the same, since NCCL launches
    it together."""
    knows: Mapping[int, int]
    """By other thread, the last of its places that was issued before for certain."""

    def comes_after(self, other: Issue) -> bool:
        """Whether it was issued after another one of the same rank, for certain."""
        return self.before(other.thread) >= other.place

    def before(self, thread: int) -> int:
        """The last place of a thread that was issued before for certain."""
        return self.place - 1 if thread == self.thread else self.knows.get(thread, 0)


class Inversion(NamedTuple):
    """Two operations in opposite orders on two ranks."""

    ranks: tuple[int, int]
    first: tuple[Issue, Issue]
    """On the first rank, in its order; the second rank has issued them the other way round."""
    second: tuple[Issue, Issue]


_Key: TypeAlias = tuple[MatchKey, int]


def read(sent: Mapping[str, Any]) -> list[Issue]:
    """A rank's history from what it has sent."""
    match_keys = [
        MatchKey(kind, group, made, tag, tuple(members))
        for kind, group, made, tag, members in sent["match_keys"]
    ]
    knows: defaultdict[int, dict[int, int]] = defaultdict(dict)
    history = []
    for where, *rest in sent["log"]:
        if where < 0:
            thread, other, place = rest
            known = {**knows[thread]}
            known[other] = max(place, known.get(other, 0))
            knows[thread] = known
        else:
            name, thread, place = rest
            label, site = sent["names"][name]
            history.append(Issue(match_keys[where], label, site, thread, place, knows[thread]))
    return history


def inversions(histories: Mapping[int, Sequence[Issue]]) -> Iterator[Inversion]:
    """The first inversion of each pair of lines, for each pair of ranks."""
    numbered = {rank: _numbered(history) for rank, history in histories.items()}
    for one, other in combinations(sorted(numbered), 2):
        yield from _between(one, numbered[one], other, numbered[other])


def _numbered(history: Sequence[Issue]) -> dict[_Key, Issue]:
    counts: Counter[MatchKey] = Counter()
    found = {}
    for issue in history:
        counts[issue.match_key] += 1
        found[issue.match_key, counts[issue.match_key]] = issue
    return found


def _between(
    one: int, mine: Mapping[_Key, Issue], other: int, theirs: Mapping[_Key, Issue]
) -> Iterator[Inversion]:
    """Look at the other rank's issues in their order, each time for one that came before on it
    and comes after on this one."""
    common = {
        key: issue
        for key, issue in theirs.items()
        if key in mine and one in key[0].members and other in key[0].members
    }
    if len({match_key for match_key, _ in common}) < 2:
        return
    seen: dict[tuple[str, int], _Prefix] = {}
    shown = set()
    for key, issue in common.items():
        here = mine[key]
        for (kind, thread), prefix in seen.items():
            if kind == _class(key[0]) != _COLLECTIVE:
                continue
            found = prefix.latest(here.thread, issue.before(thread))
            if found is None or found[0] < here.place:
                continue
            earlier = found[1]
            pair = mine[earlier], theirs[earlier]
            lines = issue.site, pair[1].site, here.site, pair[0].site
            if lines not in shown:
                shown.add(lines)
                yield Inversion((one, other), (here, pair[0]), (pair[1], issue))
        place = _class(key[0]), issue.thread
        seen.setdefault(place, _Prefix()).add(issue.place, here, key)


_COLLECTIVE = ""


def _class(match_key: MatchKey) -> str:
    """Messages of one group are not compared with each other: NCCL pairs them by their order."""
    return _COLLECTIVE if match_key.kind == "collective" else f"messages of {match_key.group}"


class _Prefix:
    """Issues of one thread of the other rank, and the latest that they know on this one."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._latest: list[dict[int, tuple[int, _Key]]] = []

    def add(self, place: int, here: Issue, key: _Key) -> None:
        latest = {**self._latest[-1]} if self._latest else {}
        for thread in {here.thread, *here.knows}:
            known = here.before(thread)
            if thread not in latest or known > latest[thread][0]:
                latest[thread] = known, key
        self._places.append(place)
        self._latest.append(latest)

    def latest(self, thread: int, until: int) -> tuple[int, _Key] | None:
        """Of those up to a place, the one after the most of a thread's issues on this rank."""
        number = bisect_right(self._places, until)
        return self._latest[number - 1].get(thread) if number else None
