"""Whether ranks have collected the same values of parameters under the same ids.

Interpreters with different hash seeds iterate over a set in different orders, and pytest numbers
values that are not plain: the ranks of ``test[config0]`` then run different configurations.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_ddp.outcome.outcome import ranks_text
from pytest_ddp.protocol.messages import Parameter

_ADVICE = """
The ranks have the same values under different ids, as from a set: each interpreter iterates over
it in another order. Sort the values, or have ids that are made of them (ids=str)."""


def refusals(sent: Sequence[Sequence[Parameter]]) -> dict[str, str]:
    """Why tests must not begin, by node id.

    Only another order is a reason: each rank has the same values, and some of them under other ids.
    A value that some ranks do not have depends on the rank, which may be intended.

    Args:
        sent: the parameters of one file, by rank.
    """
    found: dict[str, list[str]] = {}
    for name, by_rank in _by_name(sent):
        for nodeid in by_rank[0] if _is_reordered(by_rank) else ():
            values = [texts[nodeid] for texts in by_rank]
            if len({*values}) > 1:
                found.setdefault(nodeid, []).append(f"parameter {name} is {_where(values)}")
    return {nodeid: f"{'; '.join(texts)}{_ADVICE}" for nodeid, texts in found.items()}


def _by_name(sent: Sequence[Sequence[Parameter]]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Name and values of each parameter of a function that all ranks have."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for parameter in itertools.chain.from_iterable(sent):
        found.setdefault((parameter.function, parameter.name), []).append(parameter.values)
    for (_, name), by_rank in found.items():
        if len(by_rank) == len(sent):
            yield name, by_rank


def _is_reordered(by_rank: Sequence[dict[str, str]]) -> bool:
    first = by_rank[0]
    return all(
        texts.keys() == first.keys() and Counter(texts.values()) == Counter(first.values())
        for texts in by_rank
    )


def _where(values: Sequence[str]) -> str:
    """Each value with the ranks that have it."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ", ".join(f"{value} on {ranks_text(of)}" for value, of in ranks.items())
