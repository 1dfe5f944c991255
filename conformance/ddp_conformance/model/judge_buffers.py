"""Judge of MOD-04: a pure function from what ranks saw of buffers to violations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ddp_conformance.framework.history import History
from ddp_conformance.framework.verdict import Violation, ranks_in_words
from ddp_conformance.launched.endings import broke_off
from ddp_conformance.model.history import Buffers
from ddp_conformance.model.owners import Owners

USES = ("evaluation", "checkpoint")


def judge_equal_buffers(history: History) -> tuple[Violation, ...]:
    """Buffers are the same on all ranks in every evaluation and in every checkpoint.

    A run that broke off need not have come to either.
    """
    seen = [record for record in history if isinstance(record, Buffers)]
    moments: defaultdict[tuple[int, str], list[Buffers]] = defaultdict(list)
    for record in seen:
        moments[record.step, record.use].append(record)
    owners = Owners(history)
    shown = {record.use for record in seen if record.contents}
    expected = () if broke_off(history) else USES
    return (
        *(Violation(f"no buffer was seen in any {use}") for use in expected if use not in shown),
        *(
            Violation(f"{use} after step {step}: {text}")
            for (step, use), records in sorted(moments.items())
            for text in _different(records, owners)
        ),
    )


def _different(records: list[Buffers], owners: Owners) -> Iterator[str]:
    """The first buffer that differs, and how many more; those that a rank never has are others'."""
    sides: defaultdict[str, defaultdict[str, list[int]]]
    sides = defaultdict(lambda: defaultdict(list))
    names = dict.fromkeys(name for record in records for name, _ in record.contents)
    for record in records:
        for name in names:
            if owners.have(record.rank, name):
                content = dict(record.contents).get(name, "missing")
                sides[name][content].append(record.rank)
    different = [name for name in names if len(sides[name]) > 1]
    if different:
        words = " and ".join(map(ranks_in_words, sides[different[0]].values()))
        more = f", as are {len(different) - 1} more" if len(different) > 1 else ""
        yield f"{different[0]} is another on {words}{more}"
