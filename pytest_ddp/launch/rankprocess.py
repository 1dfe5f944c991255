"""The controller's record of one rank's process."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from pytest_ddp.evidence.outcome import Machine, Way
from pytest_ddp.launch.rankfiles import RankFiles
from pytest_ddp.launch.streams import Streams
from pytest_ddp.system import processes
from pytest_ddp.system.own import os
from pytest_ddp.wire.channel import Channel
from pytest_ddp.wire.hosting import World
from pytest_ddp.wire.protocol import RunTest, ToRank

_DEATH_LIMIT = 2.0
"""Seconds that a rank may live after its fatal stack; torch's handler after it needs some 0.1."""
_CAPTURE_LIMIT = 64 << 20
"""Bytes of captured output that are read of a dead rank."""

LOST_CHANNEL = "lost its connection to pytest (did the test close all descriptors?)"
WROTE_GARBAGE = (
    "was ended because something else wrote into its connection to pytest (did the test write to "
    "a descriptor that is not its own?)"
)
"""Values of ``RankProcess.condemned``."""


@dataclass(eq=False)
class RankProcess:
    """A rank's process, from its start to its end, with the state that tests have left in it.

    Only :meth:`signal`, :meth:`glance` and :meth:`kill_group` need the kernel of the rank's
    machine; all else is the same for a rank on another machine.
    """

    serial: int
    world: World
    rank: int
    channel: Channel
    pid: int | None = None
    ready: bool = False
    returncode: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    """The torchrun variables in the last message to it."""
    store: str | None = None
    """Name of the store of its process group; None if it has no group that may be reused."""
    keys: int = 0
    """Number of the test since which that store keeps its keys."""
    open: dict[Way, int] = field(default_factory=dict)
    """Sends and receives, between all ranks of its pool, that wide fixtures have not ended yet."""
    spoiled: bool = False
    """Whether tests have left others on a group that is kept for such a fixture."""
    tied: bool = False
    """Whether a fixture that is up after its last test used the process group in its set-up."""
    together: bool = False
    """Whether a fixture is up that requests ``ddp``."""
    family: str = ""
    """The family of tests that changed modules of this rank; empty if none has."""
    test: str = ""
    """Node id of the last test that it began; empty if it has begun none."""
    dying: float = 0.0
    """When its fatal stack was seen (monotonic clock); 0 if there is none."""
    captured: dict[str, int] = field(default_factory=dict)
    lost: float = 0.0
    """When its channel closed (monotonic clock); 0 if it is open."""
    condemned: str = ""
    """Why the controller killed it, as a predicate; empty if it did not."""

    refuses_terminal: ClassVar[str] = ""
    """Why descriptors of the terminal cannot be handed to it; empty if they can."""

    def __post_init__(self) -> None:
        self.files = RankFiles()
        self.streams = Streams(self.rank, self.world.world_size)

    @property
    def gone(self) -> bool:
        """Whether the process has ended."""
        return self.returncode is not None

    def send(self, message: ToRank, descriptors: tuple[int, ...] = ()) -> None:
        self.channel.send(message, descriptors)

    def order(
        self,
        test: RunTest,
        environment: dict[str, str],
        serves: tuple[int, ...],
        file: tuple[int, ...],
    ) -> None:
        """Send it the order to run a test.

        Args:
            test: the message for all ranks.
            environment: its torchrun variables.
            serves: the socket on which it serves a store; empty if it serves none.
            file: the file of a new store of the process group; empty if there is none.
        """
        changed = dict(environment.items() - self.environment.items())
        self.environment = environment
        message = replace(test, environment=changed, serve_store=bool(serves))
        self.channel.send(message, (*serves, *file))

    @property
    def machine(self) -> Machine | None:
        """Its machine; None in a session on one machine."""
        return None

    def here(self, moment: float) -> float:
        """Convert a moment from the wall clock of its machine to ours; seconds since the epoch."""
        machine = self.machine
        return moment if machine is None or machine.clock is None else machine.clock.here(moment)

    def is_stuck_in_death(self, now: float) -> bool:
        """True if it has written a fatal stack longer than the limit ago, and still lives.

        After the Python stack, torch's handler runs and allocates memory: if the thread died
        inside the allocator, the handler waits for ever.
        """
        if not self.dying and self.files.has_fatal_stack():
            self.dying = now
        return self.dying > 0 and now > self.dying + _DEATH_LIMIT

    def output(self, name: str) -> str:
        """Captured output that is in no report, also of a rank that is dead."""
        if (descriptor := self.captured.get(name)) is None:
            return ""
        return os.pread(descriptor, _CAPTURE_LIMIT, 0).decode(errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal, unless the host has reported the end of the process."""
        if self.pid is not None and not self.gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def glance(self) -> tuple[str, float]:
        """The state letter of its main thread, and the processor time of all threads in seconds.

        Both from ``/proc``; the letter is empty if that cannot be read.
        """
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return "", 0.0
        return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill_group(self) -> None:
        """Kill it with its children, for the case that the host is dead."""
        if self.pid is not None and not self.gone:
            processes.kill_group(self.pid)

    def close(self) -> None:
        """Close its channel and its files."""
        self.channel.close()
        for descriptor in self.captured.values():
            os.close(descriptor)
        self.captured = {}
        self.files.close()
        self.streams.close()
