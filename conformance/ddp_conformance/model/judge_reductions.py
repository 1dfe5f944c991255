"""The judge of how often gradients are reduced, element by element."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ddp_conformance.framework.history import History
from ddp_conformance.framework.verdict import Violation, ranks_in_words
from ddp_conformance.model.history import Coded, Reduced, SteppedWith


def is_coded(history: History) -> bool:
    """Whether some gradient had a code."""
    return any(isinstance(seen, Coded) and seen.incoming for seen in history)


def judge_reductions(history: History) -> tuple[Violation, ...]:
    """No element is reduced twice with one rank, and none is left unreduced.

    Two groups that have no other rank in common, as those of a node and those across nodes, sum
    an element with different ranks' values: this is one reduction in two parts.
    """
    return tuple(map(Violation, (*_repeated(history), *_left_out(history))))


def _repeated(history: History) -> Iterator[str]:
    """The first parameter of each operation that reduces again what another one has reduced."""
    made: defaultdict[tuple[int, int], list[Reduced]] = defaultdict(list)
    for seen in history:
        if isinstance(seen, Reduced):
            made[seen.step, seen.rank].append(seen)
    for (step, rank), reductions in made.items():
        for number, again in enumerate(reductions):
            for before in reductions[:number]:
                peers = {*before.members} & {*again.members} - {rank}
                earlier = dict(before.elements)
                both = {
                    name: {*own}.intersection(earlier.get(name, ())) for name, own in again.elements
                }
                name = next((name for name, elements in both.items() if elements), None)
                if peers and name is not None:
                    yield (
                        f"step {step}, rank {rank}: {_elements(len(both[name]), name)} reduced "
                        f"{_when(before)} and again {_when(again)}"
                    )
                    break


def _elements(number: int, name: str) -> str:
    plural, verb = ("", "is") if number == 1 else ("s", "are")
    return f"{number} element{plural} of the gradient of {name} {verb}"


def _when(reduction: Reduced) -> str:
    at = f" ({reduction.site})" if reduction.site else ""
    return f"in or after backward pass {reduction.place + 1}{at}"


def _left_out(history: History) -> Iterator[str]:
    """Elements that one rank steps with, and that are still zero on another one.

    Where both had the same gradient before, it was reduced before it came to the parameter.
    """
    coded: defaultdict[int, dict[int, Coded]] = defaultdict(dict)
    stepped: defaultdict[int, defaultdict[int, dict[str, tuple[int, ...]]]]
    stepped = defaultdict(lambda: defaultdict(dict))
    for seen in history:
        if isinstance(seen, Coded):
            coded[seen.step][seen.rank] = seen
        elif isinstance(seen, SteppedWith):
            for name, elements in seen.nonzero:
                stepped[seen.step][seen.rank].setdefault(name, elements)
    for step, by_rank in sorted(coded.items()):
        for source in (rank for rank, seen in by_rank.items() if seen.is_source):
            incoming = {rank: dict(seen.incoming) for rank, seen in by_rank.items()}
            for name, digest in incoming[source].items():
                own = stepped[step][source].get(name, ())
                lacking = {
                    rank: {*own}.difference(found[name])
                    for rank, found in sorted(stepped[step].items())
                    if name in found and incoming.get(rank, {}).get(name) != digest
                }
                without = [rank for rank, elements in lacking.items() if elements]
                if without:
                    number = len(lacking[without[0]])
                    yield (
                        f"step {step}: {_elements(number, name)} not reduced: rank {source} "
                        f"steps with what is 0 on {ranks_in_words(without)}"
                    )
