"""One machine, as the hub knows it."""

from __future__ import annotations

from pathlib import Path

from pytest_ddp.extensions.machines.clocks import Clocks
from pytest_ddp.extensions.machines.line import Frame, Kind, Line
from pytest_ddp.extensions.machines.messages import ClockMeasured
from pytest_ddp.system.own import os
from pytest_ddp.wire.hosting import Clock


class Node:
    """One machine, as far as its agent tells."""

    def __init__(self, number: int, name: str, line: Line) -> None:
        self.number, self.name, self.line = number, name, line
        self.ready = False
        self._clocks = Clocks()
        self._told: Clock | None = None

    def __str__(self) -> str:
        return f"node {self.number} ({self.name})"

    def told_otherwise(self, nodes: int | None, ours: int) -> str:
        """What its launcher has told it otherwise than node 0's, in words; empty if nothing.

        Args:
            nodes: how many machines it was told of; None if nobody told.
            ours: how many node 0 was told of.
        """
        if self.number < ours and nodes in (None, ours):
            return ""
        return (
            f"{self} was told of {nodes} machines, and node 0 of {ours}: WORLD_SIZE is the same on "
            "all nodes, and RANK is below it"
        )

    def beat(self) -> None:
        """Give a sign of life, if it is time; it may be a question about the clocks."""
        # Those of node 0 are ours.
        if self.number and (question := self._clocks.question()):
            self.line.send(Frame(Kind.BEAT, data=question))
        self.line.beat()

    def watch(self, limit: float) -> None:
        """Exchange signs of life: its line is at its end after so many seconds without one."""
        self.beat()
        if self.line.silent_for() > limit:
            self.line.at_end = f"gave no sign of life for {limit:.0f} s"

    def take_answer(self, told: bytes) -> None:
        """Take what came with a sign of life."""
        self._clocks.take(told, self.line.heard)

    @property
    def clock(self) -> Clock | None:
        """How its clocks stand to ours; None where they are ours, or before that is known."""
        return self._clocks.known

    def news(self) -> ClockMeasured | None:
        """What is known of its clocks, if the controller does not know it yet."""
        if self.clock is None or self.clock == self._told:
            return None
        self._told = self.clock
        return ClockMeasured(self.number, self.clock)

    def keep_coverage(self, data_file: str, told: bytes) -> None:
        """Write a file of it beside the data of the pytest process, which takes it up."""
        suffix, _, content = told.partition(b"\0")
        # Two machines may have one name.
        end = f".node{self.number}.{os.path.basename(suffix.decode())}"
        Path(data_file + end).write_bytes(content)
