"""Small random programs of collectives and messages on three ranks, each made by its seed. Pure.

A program begins as a list of events that could happen one after the other, so that it is legal.
Each rank does its part of them in this order. In half of the programs, a rank then does two of its
steps in the other order: some of these hang, and most do not. One program in ten has a hang planted
into it that the prover must find.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

RANKS = (0, 1, 2)
GROUPS = (RANKS, RANKS, RANKS, (0, 1), (2, 1))
"""Members of the groups, of which the default one is used most; a subgroup has its own order."""
ROOTED = ("broadcast", "scatter", "gather", "reduce", "broadcast_object_list")
KINDS = (
    *("broadcast",) * 4,
    *("scatter", "gather") * 3,
    *("send",) * 6,
    *("reduce", "barrier", "all_gather", "broadcast_object_list", "gather_object"),
)
NUMELS = (1, 1, 4, 50_000)
EVERY = 10
"""The number of programs of which one has a planted hang."""
PLANTED = 100
"""The first number of events that were planted; the proof needs a wait at their place."""
SYNCHRONOUS = ("broadcast_object_list", "gather_object")


class Step(NamedTuple):
    """What a rank does: begin an operation, with or without a wait for it; wait; sleep."""

    do: str
    """The operation, ``wait`` or ``sleep``."""
    event: int = -1
    """The step's number; a wait is for the operation of the same number."""
    group: tuple[int, ...] = RANKS
    peer: int = 0
    """Root of a collective, other end of a message."""
    waits: bool = True

    @property
    def stream(self) -> tuple[object, ...]:
        """The stream in which the operation keeps its order: collectives of a group, messages to or
        from one."""
        return (self.do, self.peer) if self.do in ("send", "recv") else self.group


@dataclass(frozen=True)
class Program:
    """The steps of each rank."""

    seed: int
    numel: int
    steps: tuple[tuple[Step, ...], ...]
    planted: str = ""
    """How a hang was planted; empty if none was."""

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The groups that are used, in an order that is the same on all ranks."""
        return sorted({step.group for steps in self.steps for step in steps})


def make(seed: int) -> Program:
    """The program of a seed."""
    dice = random.Random(seed)
    parts: list[list[Step]] = [[], [], []]
    for event in range(dice.randint(3, 7)):
        for rank, step in _event(event, dice).items():
            parts[rank].append(step)
    program = Program(seed, dice.choice(NUMELS), ())
    if seed % EVERY == 0:
        planted = _PLANTS[seed // EVERY % len(_PLANTS)](parts, dice)
        program = replace(program, planted=planted)
    elif dice.random() < 0.5:
        _swap(dice.choice(parts), dice)
    for part in parts:
        _delay_waits(part, dice)
    sleeper = dice.choice(parts)
    sleeper.insert(dice.randint(0, max(0, len(sleeper) - 1)), Step("sleep"))
    return replace(program, steps=tuple(map(tuple, parts)))


def _event(event: int, dice: random.Random) -> dict[int, Step]:
    kind = dice.choice(KINDS)
    if kind == "send":
        sender, receiver = dice.sample(RANKS, 2)
        return {
            sender: Step("send", event, peer=receiver),
            receiver: Step("recv", event, peer=sender),
        }
    group = dice.choice(GROUPS)
    step = Step(kind, event, group, dice.choice(group))
    return dict.fromkeys(group, step)


def _swap(part: list[Step], dice: random.Random) -> None:
    """Swap two steps, but never two collectives of a group: gloo may end the process for that."""
    places = [at for at, (a, b) in enumerate(pairwise(part)) if a.stream != b.stream]
    if places:
        at = dice.choice(places)
        part[at : at + 2] = reversed(part[at : at + 2])


def _delay_waits(part: list[Step], dice: random.Random) -> None:
    """Begin some operations asynchronously, and wait for them one or two steps later."""
    for step in list(part):
        is_free = step.event < PLANTED and step.do not in SYNCHRONOUS
        if is_free and dice.random() < 0.2:
            at = part.index(step)
            part[at] = step._replace(waits=False)
            part.insert(min(len(part), at + dice.randint(2, 3)), Step("wait", step.event))


# ------------------------------------------------------------------ planted hangs


def _leave(parts: list[list[Step]], dice: random.Random) -> str:
    """A rank ends before something that another one waits for."""
    part, at = dice.choice([(part, at) for part in parts for at in range(len(part))])
    del part[at:]
    return "leaves"


def _cross(parts: list[list[Step]], dice: random.Random) -> str:
    """Two ranks first receive from each other, or first send to each other."""
    first, second = dice.sample(RANKS, 2)
    at = dice.randint(0, min(len(parts[first]), len(parts[second])))
    del parts[first][at:], parts[second][at:]
    order = dice.choice((("recv", "send"), ("send", "recv")))
    for rank, peer in ((first, second), (second, first)):
        parts[rank] += [Step(do, PLANTED + at, peer=peer) for at, do in enumerate(order)]
    return "crossed"


def _differ(parts: list[list[Step]], dice: random.Random) -> str:
    """Add an end at which one rank is in a barrier and the others in something else."""
    kind = dice.choice(("broadcast", "scatter", "gather", "reduce", "all_gather"))
    odd, root = dice.choice(RANKS), dice.choice(RANKS)
    for rank, part in enumerate(parts):
        part.append(Step("barrier" if rank == odd else kind, PLANTED, peer=root))
    return "differs"


_PLANTS = (_leave, _cross, _differ)
