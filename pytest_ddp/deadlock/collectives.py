"""Compare the collectives that the ranks of an ended test called. Pure.

If ranks differ in something that an operation needs to be equal, the result is silently wrong: SUM
against MAX, float32 against int32 of the same size, one all_reduce more on one rank. Things in
which ranks may differ are not compared, such as lines of code. In uneven operations, each pair of
ranks is compared: what one sends with what the other expects.
:mod:`pytest_ddp.deadlock.message_ends` compares sends with receives.
"""

from __future__ import annotations

import ast
import linecache
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, islice, pairwise, product
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from pytest_ddp.deadlock.prover import minority
from pytest_ddp.outcome.outcome import (
    MessageRoute,
    RootCause,
    RunOutcome,
    UnmatchedMessages,
    ranks_text,
)
from pytest_ddp.outcome.stack_dumps import short_text
from pytest_ddp.protocol.rank_status import (
    CallRecord,
    CodeLine,
    GroupCount,
    MessageCounts,
    Traffic,
)
from pytest_ddp.rank.operations.table import operation_of_form

_SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter")
"""Operations in which all ranks do the same, so that two of them can be swapped."""

_IN_PIECES = ("all_gather", "reduce_scatter")
"""Operations in which each rank sends or receives a piece of equal size, if the form has a size."""

_MANY = 1000
"""A rank keeps this many calls: if it sends as many, earlier ones may be missing."""

_SHOWN = 4
"""Pieces of an uneven operation that are shown."""

_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)

_NATIVE = "issued in C++, as DDP's gradients and buffers are"

ByRank = Mapping[int, tuple[CallRecord, ...]]
Table: TypeAlias = dict[int, dict[int, CallRecord]]
"""Calls by number and rank."""


def needs_calls(counts: Mapping[int, tuple[GroupCount, ...]]) -> bool:
    """True if digests differ between members of a group, so that the calls are needed."""
    return _differ(_unbroken(counts), lambda count: (count.collectives, count.what, count.where))


def out_of_step(counts: Mapping[int, tuple[GroupCount, ...]]) -> bool:
    """True if members of a group issued different collectives, so that it must be rebuilt."""
    return _differ(counts, lambda count: (count.collectives, count.what))


def _differ(
    counts: Mapping[int, tuple[GroupCount, ...]], part: Callable[[GroupCount], object]
) -> bool:
    if _are_equal(counts):
        return False
    groups = _by_group(counts).values()
    return any(len(set(map(part, members.values()))) > 1 for members in groups)


def _are_equal(counts: Mapping[int, tuple[GroupCount, ...]]) -> bool:
    """True if the counts of all ranks are equal, as they nearly always are."""
    of_ranks = list(counts.values())
    return of_ranks[1:] == of_ranks[:-1]


def _unbroken(counts: Mapping[int, tuple[GroupCount, ...]]) -> dict[int, tuple[GroupCount, ...]]:
    """The groups without those on which a wait failed: a test that goes on has expected the
    error.
    """
    broken = {count.name for mine in counts.values() for count in mine if count.failed}
    return {
        rank: tuple(count for count in mine if count.name not in broken)
        for rank, mine in counts.items()
    }


def difference(
    counts: Mapping[int, tuple[GroupCount, ...]], calls: ByRank, *, sides: int = 1
) -> str:
    """The first collective in which the ranks differ, side by side; empty if none does.

    That numbers are unequal is found by the merge; here they get their call sites.

    Args:
        counts: collectives of each rank on each group.
        calls: the calls that Python code made.
        sides: how many ranks must have a call at the place where they diverge.
    """
    for name, members in _by_group(_unbroken(counts)).items():
        table, native = _tables(name, calls, members)
        group = next(iter(members.values())).words
        number, found = _difference(table, native, members, group, sides)
        mixed = next((n for n in sorted(table.keys() & native.keys()) if n < number), None)
        if mixed is not None and (found or sides > 1):
            # Differences after this one may be its consequences.
            title = f"the ranks first diverge at collective #{mixed} of {group}"
            first = _side_by_side(title, mixed, native[mixed] | table[mixed], members)
            return f"{first}\n{found}".rstrip()
        if found:
            return found
    return ""


def _difference(
    table: Table, native: Table, members: Mapping[int, GroupCount], group: str, sides: int
) -> tuple[float, str]:
    """The number of the first collective of a group that differs, and how; infinity and no text for
    none.
    """
    global_ranks = next(iter(members.values())).members
    for number, records in sorted((*table.items(), *native.items()), key=itemgetter(0)):
        unmet = next((f"\n  {words}" for _, _, words in _unmet(records, global_ranks)), "")
        if unmet or any(_contradict(a, b) for a, b in combinations(records.values(), 2)):
            title = f"the ranks differ in collective #{number} of {group}"
            return number, f"{_side_by_side(title, number, records, members)}{unmet}"
    if len({count.collectives for count in members.values()}) > 1:
        parting = _parting(table, members)
        if parting is not None and len(table[parting]) >= sides:
            title = f"the ranks diverge at collective #{parting} of {group}"
            return parting, _side_by_side(title, parting, table[parting], members)
    return math.inf, ""


def issued_in_vain(
    counts: Mapping[int, tuple[GroupCount, ...]], ended: Collection[int]
) -> dict[int, tuple[GroupCount, ...]]:
    """The counts as far as the ranks that still run may not catch up any more.

    A rank that runs may issue later what it has not issued yet. So what others issued after its
    last collective is left out; a rank that has ended issues no more.
    """
    running = [mine for rank, mine in counts.items() if rank not in ended]
    reached = {
        name: min(count.collectives for count in members.values())
        for name, members in _by_group(dict(enumerate(running))).items()
    }
    return {
        rank: tuple(
            replace(count, collectives=min(count.collectives, reached.get(count.name, 0)))
            for count in mine
        )
        for rank, mine in counts.items()
    }


def root_cause(counts: Mapping[int, tuple[GroupCount, ...]], calls: ByRank) -> RootCause:
    """The ranks that differ from most, at the first collective in which ranks differ."""
    for name, members in _by_group(_unbroken(counts)).items():
        global_ranks = next(iter(members.values())).members
        tables = _tables(name, calls, members)
        numbered = (pair for table in tables for pair in table.items())
        for number, records in sorted(numbered, key=itemgetter(0)):
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
    return RootCause((), "no collective differs between the ranks")


def suspicions(counts: Mapping[int, tuple[GroupCount, ...]], calls: ByRank) -> list[str]:
    """Sentences about similar collectives that ranks seem to have called in swapped order.

    Ranks may reach a collective from different lines, so this is no verdict.
    """
    found = []
    for name, members in _by_group(_unbroken(counts)).items():
        group = next(iter(members.values())).words
        table, native = _tables(name, calls, members)
        for (first, one), (second, two) in pairwise(sorted(table.items())):
            swapped = next(_swapped(one, two), None)
            if swapped is not None:
                a, b = swapped
                found.append(
                    f"collectives #{first} and #{second} of {group} may be swapped: rank {a} "
                    f"calls {_source(one[a])} and then {_source(two[a])}, rank {b} the other "
                    f"way round ({short_text(one[a].site)}, {short_text(one[b].site)})"
                )
        for first, a, second, b in islice(_swapped_with_native(table, native), 1):
            call = table[first][a]
            found.append(
                f"collectives #{first} to #{second} of {group} may be swapped: {_source(call)} "
                f"comes before what C++ issues on rank {a}, and after it on rank {b} "
                f"({short_text(call.site)})"
            )
    return found


def unequal_collectives(outcome: RunOutcome) -> str:
    """Process groups with different numbers of collectives on their members; empty if none.

    Ranks that did not report are left out, and so are members that have destroyed the group:
    their numbers are unknown.
    """
    alive = {rank.rank: rank.done.counts for rank in outcome.ranks if rank.done is not None}
    if _are_equal(alive):
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
    return ", ".join(f"{ranks_text(of)} issued {number}" for number, of in ranks.items())


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
    """Calls on a group by number and rank: those of Python, and those issued in C++.

    The two are not compared with each other, as a functional form may match the plain one.
    """
    python: Table = {}
    native: Table = {}
    for rank, records in calls.items():
        for record in records:
            # A number above the rank's count belongs to a call that torch refused.
            refused = rank in members and record.number > members[rank].collectives
            if record.group == group and not refused:
                table = python if record.site else native
                table.setdefault(record.number, {})[rank] = record
    return python, native


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
    """Pairs of a sender and a receiver that expects something else, with a sentence on it."""
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
    """The piece for a member; if all members get the same, there is only one."""
    return pieces[member] if member < len(pieces) else pieces[0]


def _family(call: CallRecord) -> str:
    """The operation of which a call is a form, as forms are the same to the backend."""
    return operation_of_form(call.operation)


def _parting(
    table: Mapping[int, Mapping[int, CallRecord]], members: Mapping[int, GroupCount]
) -> int | None:
    """The first number that not all members have, or not from the same line of source."""
    kept = {rank: [n for n, records in table.items() if rank in records] for rank in members}
    for number, records in sorted(table.items()):
        if len({_source(call) for call in records.values()}) > 1:
            return number
        absent = (rank for rank in members if rank not in records)
        if any(_has_parted(number, members[rank], kept[rank]) for rank in absent):
            return number
    return None


def _has_parted(number: int, count: GroupCount, kept: list[int]) -> bool:
    """True if a rank without this call did not reach its number, or reached it from C++."""
    if count.collectives < number:
        return True
    is_dropped = len(kept) >= _MANY and number < min(kept)
    return bool(kept) and not is_dropped


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
    """A Python call on one rank beside a C++ one on another, and later the other way round.

    Yields the number and the rank of both Python calls.
    """
    first, *later = sorted(table.keys() & native.keys()) or [0]
    for a, b in product(table.get(first, ()), native.get(first, ())):
        for second in later:
            is_crossed = b in table[second] and a in native[second]
            if is_crossed and _source(table[first][a]) == _source(table[second][b]):
                yield first, a, second, b


# ------------------------------------------------------------------ source


def _source(call: CallRecord) -> str:
    return "" if call.site is None else source_of(call.site)


def source_of(site: CodeLine) -> str:
    """The text of a line of code, else its number."""
    return linecache.getline(site.file, site.line).strip() or str(site)


def _branches_apart(a: CallRecord, b: CallRecord) -> bool:
    """True if two calls are in opposite branches of one ``if``.

    ``if rank == src: all_reduce(x) else: all_reduce(zeros)`` in a loop over sources is
    no swap.
    """
    first, second = a.site, b.site
    if first is None or second is None or first.file != second.file:
        return False
    return any(
        (first.line in body) != (second.line in body)
        and (first.line in orelse) != (second.line in orelse)
        for body, orelse in _branches(first.file)
    )


@lru_cache(maxsize=64)
def _branches(file: str) -> tuple[tuple[range, range], ...]:
    """The lines of each ``if``'s body in a file, with those that run instead of it."""
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
    """The statements that run only if a branch that leaves the block was not taken."""
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
    by_call: dict[tuple[str, CodeLine | None], list[int]] = {}
    for rank, call in sorted(records.items()):
        by_call.setdefault((_words(call, global_ranks), call.site), []).append(rank)
    lines = [f"{title}:"]
    for (words, site), ranks in by_call.items():
        lines.append(f"  {ranks_text(ranks)}: {words}")
        source = f"at {short_text(site)}: {source_of(site)}" if site else _NATIVE
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


# ------------------------------------------------------------------
# Match each send of a test with its receive. Pure.
#
# A send or receive without its counterpart reaches the next test on these ranks: that test's
# receive takes the old message, or its send goes to the old receive. One rank alone cannot find
# out: a send may be complete before it is received.

_ANY = -1


class Balance(NamedTuple):
    """Sends and receives of a test without their counterpart."""

    unfinished: tuple[UnmatchedMessages, ...]
    open: dict[MessageRoute, int]
    """The sends and receives that fixtures began which are still up: sends without a receive; below
    zero, receives without a send."""


NOTHING = Balance((), {})


def balance(
    counts: Mapping[int, tuple[GroupCount, ...]],
    traffic: Mapping[int, Traffic],
    before: Mapping[MessageRoute, int],
    *,
    keeps: bool,
) -> Balance:
    """Match sends with receives.

    Args:
        counts: the groups of every rank of the test.
        traffic: sends and receives that ranks began in the test.
        before: those that were open when it began.
        keeps: whether a fixture is still up that may have begun some.
    """
    if any(each.unclear for each in traffic.values()):
        return NOTHING
    whole = set(whole_groups(counts))
    total = Counter({way: n for way, n in before.items() if way[:2] in whole})
    wide, sites = Counter(total), dict[tuple[MessageRoute, bool], CodeLine]()
    for rank, begun in traffic.items():
        for message in begun.messages:
            way, sign = _way(rank, message), 1 if message.is_send else -1
            if way[:2] in whole:
                total[way] += sign * message.count
                wide[way] += sign * message.wide
                sites[way, message.is_send] = message.site
    _match_any(total)
    unfinished, still = [], {}
    for way, number in total.items():
        least, most = sorted((0, wide[way] if keeps else 0))
        if kept := min(max(number, least), most):
            still[way] = kept
        if excess := number - kept:
            unfinished.append(UnmatchedMessages(way, excess, sites.get((way, excess > 0))))
    return Balance(tuple(unfinished), still)


def whole_groups(
    counts: Mapping[int, tuple[GroupCount, ...]],
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The groups that no member has destroyed, and on which no wait has failed."""
    of_rank = {rank: {(c.name, c.members): c for c in mine} for rank, mine in counts.items()}
    for group in {group for mine in of_rank.values() for group in mine}:
        of_members = [of_rank.get(member, {}).get(group) for member in group[1]]
        if all(count is not None and not count.failed for count in of_members):
            yield group


def _way(rank: int, message: MessageCounts) -> MessageRoute:
    ends = (rank, message.peer) if message.is_send else (message.peer, rank)
    return MessageRoute(message.group, message.members, *ends, message.tag)


def _match_any(total: Counter[MessageRoute]) -> None:
    """Match receives from any rank with the messages that no other receive takes."""
    for any_ in [way for way, number in total.items() if way.sender == _ANY and number < 0]:
        for way in [way for way in total if way._replace(sender=_ANY) == any_ != way]:
            taken = max(0, min(total[way], -total[any_]))
            total[way] -= taken
            total[any_] += taken
