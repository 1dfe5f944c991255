"""One machine, on the side of the coordinator."""

from __future__ import annotations

from pathlib import Path

from pytest_ddp.extensions.machines.agent_connection import AgentConnection, FrameKind, WireFrame
from pytest_ddp.extensions.machines.clocks import Clocks
from pytest_ddp.extensions.machines.machine_messages import ClockMeasured
from pytest_ddp.protocol.host_messages import Clock
from pytest_ddp.system.stdlib import os


class Node:
    """One machine and its connection."""

    def __init__(self, number: int, name: str, connection: AgentConnection) -> None:
        self.number, self.name, self.line = number, name, connection
        self.ready = False
        self._clocks = Clocks()
        self._sent: Clock | None = None

    def __str__(self) -> str:
        return f"node {self.number} ({self.name})"

    def other_settings(self, nodes: int | None, ours: int) -> str:
        """How the launcher's settings differ from those on node 0, in words; empty if they do not.

        Args:
            nodes: the number of machines by the node's launcher; None if the launcher has none.
            ours: the number of machines by node 0's.
        """
        if self.number < ours and nodes in (None, ours):
            return ""
        return (
            f"{self} has WORLD_SIZE={nodes}, and node 0 has {ours}: WORLD_SIZE is the same on all "
            "nodes, and RANK is below it"
        )

    def beat(self) -> None:
        """Send a sign of life, if it is time; it may be a request for the clocks."""
        # Node 0 has the same clocks as this process.
        if self.number and (question := self._clocks.question()):
            self.line.send(WireFrame(FrameKind.HEARTBEAT, data=question))
        self.line.beat()

    def watch(self, limit: float) -> None:
        """Exchange signs of life; the connection ends after so many seconds without one."""
        self.beat()
        if self.line.silent_for() > limit:
            self.line.at_end = f"gave no sign of life for {limit:.0f} s"

    def take_answer(self, answer: bytes) -> None:
        """Take what was received with a sign of life."""
        self._clocks.take(answer, self.line.received_at)

    @property
    def clock(self) -> Clock | None:
        """How far the machine's clocks are ahead; None where they are ours, or before they are
        measured."""
        return self._clocks.known

    def news(self) -> ClockMeasured | None:
        """The machine's clocks, if they have changed since they were sent to the controller."""
        if self.clock is None or self.clock == self._sent:
            return None
        self._sent = self.clock
        return ClockMeasured(self.number, self.clock)

    def keep_coverage(self, data_file: str, sent: bytes) -> None:
        """Write a coverage file of the machine beside that of the pytest process, which combines
        them."""
        suffix, _, content = sent.partition(b"\0")
        # Two machines may have one name.
        end = f".node{self.number}.{os.path.basename(suffix.decode())}"
        Path(data_file + end).write_bytes(content)
