"""The controller's record of one rank's process."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from pytest_ddp.launch.streams import Streams
from pytest_ddp.outcome.outcome import Machine, MessageRoute
from pytest_ddp.protocol import buffered_reports, status_page
from pytest_ddp.protocol.channel import Channel
from pytest_ddp.protocol.host_messages import World
from pytest_ddp.protocol.messages import RunTest, ToRank
from pytest_ddp.system import processes, tempfiles
from pytest_ddp.system.stdlib import os

# ------------------------------------------------------------------
# Files into which a rank writes, readable while it runs and after its death.


class RankFiles:
    """The files of one rank; :class:`pytest_ddp.protocol.messages.StartRank` carries them to it."""

    def __init__(self) -> None:
        self.faults, self.children, self.page, self.trace_file = self.descriptors = tuple(
            tempfiles.create(f"pytest-ddp {name}")
            for name in ("stacks", "stacks of children", "phase", "trace")
        )
        """The files in the order in which they are sent."""

    def begin(self) -> None:
        """Discard stacks and traces that were written before now."""
        for descriptor in (self.faults, self.children, self.trace_file):
            # Safe while a rank writes, since it appends. A trace is long, and held in memory.
            os.ftruncate(descriptor, 0)

    def stacks(self) -> str:
        """The output of faulthandler since :meth:`begin`."""
        return _read(self.faults)

    def stacks_of_children(self) -> str:
        """The output of faulthandler in processes that the rank has forked."""
        return _read(self.children)

    def mark(self) -> status_page.StatusNote:
        """The last phase of the rank."""
        return status_page.read(Path(tempfiles.path_of(self.page)))

    def recovered_reports(self) -> buffered_reports.RecoveredReports:
        """Reports that the rank holds back until the end of its test."""
        return buffered_reports.read(Path(tempfiles.path_of(self.page)))

    def trace(self) -> str:
        """The events of the rank for ``--ddp-trace`` since :meth:`begin`; empty without it."""
        return _read(self.trace_file)

    def has_fatal_stack(self) -> bool:
        """True if the rank has written the stack of a fatal signal since :meth:`begin`."""
        return "Fatal Python error" in self.stacks()

    def close(self) -> None:
        """Close the files."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        # The kernel may give the numbers to other files.
        self.faults = self.children = self.page = self.trace_file = -1
        self.descriptors = ()


def _read(descriptor: int) -> str:
    with contextlib.suppress(OSError):
        # Nearly always the file is empty, and fstat costs a tenth of a read.
        if size := os.fstat(descriptor).st_size:
            return os.pread(descriptor, size, 0).decode(errors="replace")
    return ""


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
    """The torchrun variables in the last message to the rank."""
    store: str | None = None
    """Name of the store of the rank's process group; None if it has no group that may be reused."""
    keys: int = 0
    """Number of the test since which the process group's store keeps its keys."""
    open: dict[MessageRoute, int] = field(default_factory=dict)
    """Sends and receives, between all ranks of the pool, that wide fixtures have not ended yet."""
    spoiled: bool = False
    """Whether tests have left other messages on a group that is kept for a wide fixture."""
    holds_group: bool = False
    """Whether a fixture that is up after the rank's last test used the process group in its
    set-up."""
    needs_peers: bool = False
    """Whether a fixture is up that requests ``ddp``."""
    module_state: str = ""
    """``module_state`` of the tests that changed modules of this rank; empty if none has."""
    altered: str = ""
    """What planned runs have changed in this rank for good, in a word; empty if none has."""
    test: str = ""
    """Node id of the last test that the rank began; empty if it has begun none."""
    dying: float = 0.0
    """When the rank's fatal stack was seen (monotonic clock); 0 if there is none."""
    captured: dict[str, int] = field(default_factory=dict)
    lost: float = 0.0
    """When the rank's channel closed (monotonic clock); 0 if it is open."""
    condemned: str = ""
    """Why the controller killed the rank, as a predicate; empty if it did not."""

    refuses_terminal: ClassVar[str] = ""
    """Why descriptors of the terminal cannot be handed to the rank; empty if they can."""

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
        """Send the rank the order to run a test.

        Args:
            test: the message for all ranks.
            environment: the rank's torchrun variables.
            serves: the socket on which it serves a store; empty if it serves none.
            file: the file of a new store of the process group; empty if there is none.
        """
        changed = dict(environment.items() - self.environment.items())
        self.environment = environment
        message = replace(test, environment=changed, serve_store=bool(serves))
        self.channel.send(message, (*serves, *file))

    @property
    def machine(self) -> Machine | None:
        """The rank's machine; None in a session on one machine."""
        return None

    def here(self, moment: float) -> float:
        """Convert a moment from the wall clock of the rank's machine to ours; seconds since the
        epoch."""
        machine = self.machine
        return moment if machine is None or machine.clock is None else machine.clock.here(moment)

    def is_stuck_in_death(self, now: float) -> bool:
        """True if the rank has written a fatal stack longer than the limit ago, and still lives.

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
        """The state letter of the main thread, and the processor time of all threads in seconds.

        Both from ``/proc``; the letter is empty if that cannot be read.
        """
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return "", 0.0
        return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill_group(self) -> None:
        """Kill the rank with its children, for the case that the host is dead."""
        if self.pid is not None and not self.gone:
            processes.kill_group(self.pid)

    def close(self) -> None:
        """Close the rank's channel and its files."""
        self.channel.close()
        for descriptor in self.captured.values():
            os.close(descriptor)
        self.captured = {}
        self.files.close()
        self.streams.close()
