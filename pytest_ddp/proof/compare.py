"""Compare what the ranks of an ended test asked of their process groups. Pure.

A difference in something that an operation needs equal is silently wrong numbers
today: SUM against MAX, float32 against int32 of the same size, one all_reduce more on
one rank. What ranks may legally differ in is never compared: messages, lines of code. Of
uneven operations it is what goes from one rank to another.
"""

from __future__ import annotations

import ast
import linecache
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import combinations, islice, pairwise, product
from operator import itemgetter
from typing import TypeAlias

from pytest_ddp.evidence.outcome import RootCause, RunOutcome
from pytest_ddp.evidence.pythonstacks import shorten
from pytest_ddp.evidence.wording import ranks_text
from pytest_ddp.proof.minority import minority
from pytest_ddp.wire.survey import CallRecord, GroupCount, group_words

_FAMILIES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Operations whose forms are one operation on the wire."""
_SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter")
"""Operations in which all ranks do the same, so that two of them can be swapped."""

_IN_PIECES = ("all_gather", "reduce_scatter")
"""Operations in which a rank sends or receives a piece of one size, if their form has a size."""

_MANY = 1000
"""A rank that tells of this many calls may have forgotten those before them."""

_SHOWN = 4
"""Pieces of an uneven operation before the list is cut short."""

_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)

_NATIVE = "issued in C++, as DDP's gradients and buffers are"

ByRank = Mapping[int, tuple[CallRecord, ...]]
Table: TypeAlias = dict[int, dict[int, CallRecord]]
"""Calls by number and rank."""


def need_calls(counts: Mapping[int, tuple[GroupCount, ...]]) -> bool:
    """True if the digests of some group's members differ, so that the calls must be seen."""
    return _differ(_unbroken(counts), lambda count: (count.collectives, count.what, count.where))


def out_of_step(counts: Mapping[int, tuple[GroupCount, ...]]) -> bool:
    """True if members of some group issued different collectives, so that it must go."""
    return _differ(counts, lambda count: (count.collectives, count.what))


def _differ(
    counts: Mapping[int, tuple[GroupCount, ...]], part: Callable[[GroupCount], object]
) -> bool:
    if _are_alike(counts):
        return False
    groups = _by_group(counts).values()
    return any(len(set(map(part, members.values()))) > 1 for members in groups)


def _are_alike(counts: Mapping[int, tuple[GroupCount, ...]]) -> bool:
    """True if all ranks tell the same in every respect, as they nearly always do."""
    told = list(counts.values())
    return told[1:] == told[:-1]


def _unbroken(counts: Mapping[int, tuple[GroupCount, ...]]) -> dict[int, tuple[GroupCount, ...]]:
    """Without the groups on which a wait failed: a test that goes on has expected that."""
    broken = {count.name for mine in counts.values() for count in mine if count.failed}
    return {
        rank: tuple(count for count in mine if count.name not in broken)
        for rank, mine in counts.items()
    }


def difference(
    counts: Mapping[int, tuple[GroupCount, ...]], calls: ByRank, *, sides: int = 1
) -> str:
    """The first collective that the ranks do not agree on, side by side; empty if they do.

    Unequal numbers alone are the merge's finding; here they get their call sites.

    Args:
        counts: what each rank issued on each group.
        calls: what Python code asked for.
        sides: how many ranks must have a call at the place where they part.
    """
    for name, members in _by_group(_unbroken(counts)).items():
        table, native = _tables(name, calls, members)
        global_ranks = next(iter(members.values())).members
        group = group_words(name, global_ranks)
        number, found = _difference(table, native, members, group, sides)
        met = next((n for n in sorted(table.keys() & native.keys()) if n < number), None)
        if met is not None and (found or sides > 1):
            # What follows may look wrong on both sides, and comes of this.
            title = f"the ranks first part at collective #{met} of {group}"
            first = _side_by_side(title, met, native[met] | table[met], members)
            return f"{first}\n{found}".rstrip()
        if found:
            return found
    return ""


def _difference(
    table: Table, native: Table, members: Mapping[int, GroupCount], group: str, sides: int
) -> tuple[float, str]:
    """Which collective of a group differs first, and how; infinity and nothing if none does."""
    global_ranks = next(iter(members.values())).members
    for number, asked in sorted((*table.items(), *native.items()), key=itemgetter(0)):
        unmet = next((f"\n  {words}" for _, _, words in _unmet(asked, global_ranks)), "")
        if unmet or any(_contradict(a, b) for a, b in combinations(asked.values(), 2)):
            title = f"the ranks differ in collective #{number} of {group}"
            return number, f"{_side_by_side(title, number, asked, members)}{unmet}"
    if len({count.collectives for count in members.values()}) > 1:
        parting = _parting(table, members)
        if parting is not None and len(table[parting]) >= sides:
            title = f"the ranks part at collective #{parting} of {group}"
            return parting, _side_by_side(title, parting, table[parting], members)
    return math.inf, ""


def root_cause(counts: Mapping[int, tuple[GroupCount, ...]], calls: ByRank) -> RootCause:
    """Whose collectives are unlike those of most ranks, at the first that are unlike."""
    for name, members in _by_group(_unbroken(counts)).items():
        global_ranks = next(iter(members.values())).members
        tables = _tables(name, calls, members)
        asked = (pair for table in tables for pair in table.items())
        for number, records in sorted(asked, key=itemgetter(0)):
            kinds = _kinds(records)
            if len(kinds) > 1:
                absent = [rank for rank, count in members.items() if count.collectives < number]
                return minority([*kinds, absent], len(global_ranks))
            if unmet := [{a, b} for a, b, _ in _unmet(records, global_ranks)]:
                if len(odd := set.intersection(*unmet)) == 1:
                    return minority([[*odd], [*records.keys() - odd]], len(global_ranks))
                return RootCause((), "of ranks whose tensors do not fit, either may be wrong")
        issued: dict[int, list[int]] = {}
        for rank, count in members.items():
            issued.setdefault(count.collectives, []).append(rank)
        if len(issued) > 1:
            return minority(issued.values(), len(global_ranks))
    return RootCause((), "no collective of the ranks is unlike")


def suspicions(counts: Mapping[int, tuple[GroupCount, ...]], calls: ByRank) -> list[str]:
    """Pairs of alike collectives that some ranks seem to have called in swapped order.

    Ranks may reach a collective from different lines, so this is no verdict.
    """
    found = []
    for name, members in _by_group(_unbroken(counts)).items():
        group = group_words(name, next(iter(members.values())).members)
        table, native = _tables(name, calls, members)
        for (first, one), (second, two) in pairwise(sorted(table.items())):
            swapped = next(_swapped(one, two), None)
            if swapped is not None:
                a, b = swapped
                found.append(
                    f"collectives #{first} and #{second} of {group} may be swapped: rank {a} "
                    f"calls {_source(one[a])} and then {_source(two[a])}, rank {b} the other "
                    f"way round ({shorten(one[a].site)}, {shorten(one[b].site)})"
                )
        for first, a, second, b in islice(_swapped_with_native(table, native), 1):
            call = table[first][a]
            found.append(
                f"collectives #{first} to #{second} of {group} may be swapped: {_source(call)} "
                f"comes before what C++ issues on rank {a}, and after it on rank {b} "
                f"({shorten(call.site)})"
            )
    return found


def unequal_collectives(outcome: RunOutcome) -> str:
    """Which process groups saw different numbers of collectives; empty if none did.

    Ranks that never came to tell are left out, and so are members that have destroyed the
    group: nothing is known of them.
    """
    alive = {rank.rank: rank.done.counts for rank in outcome.ranks if rank.done is not None}
    if _are_alike(alive):
        return ""
    alive = _unbroken(alive)
    issued: dict[tuple[str, tuple[int, ...]], dict[int, int]] = {}
    for rank, counts in sorted(alive.items()):
        for count in counts:
            by_rank = issued.setdefault((count.name, count.members), {})
            by_rank[rank] = by_rank.get(rank, 0) + count.collectives
    found = [
        f"{_group_text(*group)}: {_issued_text(by_rank)}"
        for group, by_rank in sorted(issued.items())
        if len(set(by_rank.values())) > 1
    ]
    return f"unequal number of collectives on {'; on '.join(found)}" if found else ""


def _group_text(name: str, members: tuple[int, ...]) -> str:
    return "the default group" if name == "0" else f"group {name!r} of {ranks_text(members)}"


def _issued_text(by_rank: dict[int, int]) -> str:
    ranks: dict[int, list[int]] = {}
    for rank, number in by_rank.items():
        ranks.setdefault(number, []).append(rank)
    return ", ".join(f"{ranks_text(who)} issued {number}" for number, who in ranks.items())


# ------------------------------------------------------------------ alignment


def _by_group(
    counts: Mapping[int, tuple[GroupCount, ...]],
) -> dict[str, dict[int, GroupCount]]:
    groups: dict[str, dict[int, GroupCount]] = {}
    for rank, mine in counts.items():
        for count in mine:
            groups.setdefault(count.name, {})[rank] = count
    return groups


def _tables(group: str, calls: ByRank, members: Mapping[int, GroupCount]) -> tuple[Table, Table]:
    """Calls on a group by number and rank: those of Python, and what C++ issued by itself.

    They are not compared with each other, as a functional form may meet the plain one.
    """
    asked: Table = {}
    native: Table = {}
    for rank, records in calls.items():
        for record in records:
            # A number that the rank has not come to is that of a call which torch refused.
            refused = rank in members and record.number > members[rank].collectives
            if record.group == group and not refused:
                table = asked if record.site else native
                table.setdefault(record.number, {})[rank] = record
    return asked, native


def _contradict(a: CallRecord, b: CallRecord) -> bool:
    if _family(a) != _family(b) or a.root != b.root or a.reduce_op != b.reduce_op:
        return True
    if a.dtype is not None and b.dtype is not None and a.dtype != b.dtype:
        return True
    return a.numel is not None and b.numel is not None and a.numel != b.numel


def _kinds(records: Mapping[int, CallRecord]) -> list[list[int]]:
    """The ranks whose calls do not contradict each other."""
    kinds: list[list[int]] = []
    for rank, call in records.items():
        same = (kind for kind in kinds if not _contradict(records[kind[0]], call))
        if (kind := next(same, None)) is not None:
            kind.append(rank)
        else:
            kinds.append([rank])
    return kinds


def _unmet(
    records: Mapping[int, CallRecord], members: tuple[int, ...]
) -> Iterator[tuple[int, int, str]]:
    """Who sends whom something else than that rank expects, and in words."""
    pieces = {rank: _pieces(call) for rank, call in records.items() if rank in members}
    for (sender, (sends, _)), (receiver, (_, expects)) in product(pieces.items(), repeat=2):
        if sends and expects:
            sent = _at(sends, members.index(receiver))
            expected = _at(expects, members.index(sender))
            if sent != expected:
                words = f"rank {sender} sends {sent} to rank {receiver}, which expects {expected}"
                yield sender, receiver, words


def _pieces(call: CallRecord) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not call.sends and call.numel is not None and _family(call) in _IN_PIECES:
        piece = (f"{call.numel} x {call.dtype}",)
        return piece, piece
    return call.sends, call.receives


def _at(pieces: tuple[str, ...], member: int) -> str:
    """What is for a member; where they get the same, there is one for all of them."""
    return pieces[member] if member < len(pieces) else pieces[0]


def _family(call: CallRecord) -> str:
    return next((f for f in _FAMILIES if call.operation.startswith(f)), call.operation)


def _parting(
    table: Mapping[int, Mapping[int, CallRecord]], members: Mapping[int, GroupCount]
) -> int | None:
    """The first number that not all members have, or reach from the same text."""
    kept = {rank: [n for n, records in table.items() if rank in records] for rank in members}
    for number, records in sorted(table.items()):
        if len({_source(call) for call in records.values()}) > 1:
            return number
        absent = (rank for rank in members if rank not in records)
        if any(_has_parted(number, members[rank], kept[rank]) for rank in absent):
            return number
    return None


def _has_parted(number: int, count: GroupCount, kept: list[int]) -> bool:
    """True if a rank without this call did not come to it, or came to it from C++."""
    if count.collectives < number:
        return True
    is_forgotten = len(kept) >= _MANY and number < min(kept)
    return bool(kept) and not is_forgotten


def _swapped(
    one: Mapping[int, CallRecord], two: Mapping[int, CallRecord]
) -> Iterator[tuple[int, int]]:
    for a, b in combinations(sorted(one.keys() & two.keys()), 2):
        records = (one[a], two[a], one[b], two[b])
        if any(_family(record) not in _SYMMETRIC for record in records):
            continue
        texts = [_source(record) for record in records]
        crossed = texts[0] == texts[3] != texts[1] == texts[2]
        if crossed and not any(_branches_apart(x, y) for x, y in (records[:2], records[2:])):
            yield a, b


def _swapped_with_native(table: Table, native: Table) -> Iterator[tuple[int, int, int, int]]:
    """A call of Python that meets what C++ issued, and is met by it later on, each with a rank."""
    first, *later = sorted(table.keys() & native.keys()) or [0]
    for a, b in product(table.get(first, ()), native.get(first, ())):
        for second in later:
            is_crossed = b in table[second] and a in native[second]
            if is_crossed and _source(table[first][a]) == _source(table[second][b]):
                yield first, a, second, b


# ------------------------------------------------------------------ source


def _source(call: CallRecord) -> str:
    """The text of the calling line, which tells more than its number."""
    file, _, line = call.site.rpartition(":")
    return linecache.getline(file, int(line)).strip() or call.site


def _branches_apart(a: CallRecord, b: CallRecord) -> bool:
    """True if two calls stand in opposite branches of one ``if``.

    ``if rank == src: all_reduce(x) else: all_reduce(zeros)`` in a loop over sources is
    no swap.
    """
    file, _, first = a.site.rpartition(":")
    other, _, second = b.site.rpartition(":")
    return file == other and any(
        (int(first) in body) != (int(second) in body)
        and (int(first) in orelse) != (int(second) in orelse)
        for body, orelse in _branches(file)
    )


@lru_cache(maxsize=64)
def _branches(file: str) -> tuple[tuple[range, range], ...]:
    """Lines of each ``if`` of a file, with those that run instead."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(
        (_lines(statement.body), _lines(instead))
        for node in ast.walk(tree)
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
        if isinstance(block, list)
        for position, statement in enumerate(block)
        if isinstance(statement, ast.If)
        and (instead := statement.orelse or _rest(statement, block[position + 1 :]))
    )


def _rest(statement: ast.If, following: list[ast.stmt]) -> list[ast.stmt]:
    """What runs only if a branch that leaves the block was not taken."""
    return following if isinstance(statement.body[-1], _LEAVES) else []


def _lines(statements: list[ast.stmt]) -> range:
    return range(statements[0].lineno, (statements[-1].end_lineno or 0) + 1)


# ------------------------------------------------------------------ words


def _side_by_side(
    title: str,
    number: int,
    records: Mapping[int, CallRecord],
    members: Mapping[int, GroupCount],
) -> str:
    global_ranks = next(iter(members.values())).members
    alike: dict[tuple[str, str], list[int]] = {}
    for rank, call in sorted(records.items()):
        alike.setdefault((_words(call, global_ranks), call.site), []).append(rank)
    lines = [f"{title}:"]
    for (words, site), ranks in alike.items():
        lines.append(f"  {ranks_text(ranks)}: {words}")
        source = f"at {shorten(site)}: {_source(records[ranks[0]])}" if site else _NATIVE
        lines.append(f"    {source}")
    absent = members.keys() - records.keys()
    if none := [rank for rank in absent if members[rank].collectives < number]:
        lines.append(f"  {ranks_text(none)}: no collective")
    if others := absent - {*none}:
        lines.append(f"  {ranks_text(others)}: one not known, from C++ or long ago")
    return "\n".join(lines)


def _words(call: CallRecord, global_ranks: tuple[int, ...]) -> str:
    details = []
    if call.reduce_op is not None:
        details.append(call.reduce_op)
    if call.numel is not None:
        details.append(f"{call.numel} x {call.dtype}")
    elif call.sends and call.sends == call.receives and len(call.sends) == 1:
        details.append(call.sends[0])
    elif call.sends:
        details += [f"sends {_listed(call.sends)}", f"receives {_listed(call.receives)}"]
    if call.root is not None:
        details.append(f"root {global_ranks[call.root]}")
    return f"{call.operation}({', '.join(details)})"


def _listed(pieces: tuple[str, ...]) -> str:
    shown = "; ".join(pieces[:_SHOWN])
    return f"{shown}; ..." if len(pieces) > _SHOWN else shown
