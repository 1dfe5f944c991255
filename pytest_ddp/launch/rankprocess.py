"""One rank's process, as the controller knows it."""

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
from pytest_ddp.wire.channel import Channel, dumps
from pytest_ddp.wire.hosting import World
from pytest_ddp.wire.protocol import RunTest, ToRank

_DEATH_LIMIT = 2.0
"""Seconds that a rank may live after it has written its last stack; torch's needs some 0.1."""
_CAPTURE_LIMIT = 64 << 20

LOST_CHANNEL = "lost its connection to pytest (did the test close all descriptors?)"
WROTE_GARBAGE = (
    "was ended because something else wrote into its connection to pytest (did the test write to "
    "a descriptor that is not its own?)"
)
"""What a rank may be condemned for."""


class Wording:
    """An order to run a test, put in words: once, as nearly all ranks are told the same."""

    def __init__(self, test: RunTest) -> None:
        self._test = test
        self._known: dict[tuple[bool, frozenset[tuple[str, str]]], bytes] = {}

    def of(self, changed: dict[str, str], *, serves: bool) -> bytes:
        """That for a rank whose torchrun variables have changed so, which may serve the store."""
        what = serves, frozenset(changed.items())
        if what not in self._known:
            told = replace(self._test, environment=changed, serve_store=serves)
            self._known[what] = dumps(told).encode()
        return self._known[what]


@dataclass(eq=False)
class RankProcess:
    """Started, perhaps up, perhaps gone; and what its tests have left in it.

    What asks the kernel for a process of this machine are :meth:`signal`, :meth:`glance` and
    :meth:`kill_group`: all else is the same for a rank on another one.
    """

    serial: int
    world: World
    rank: int
    channel: Channel
    pid: int | None = None
    ready: bool = False
    returncode: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    """The torchrun variables that it was told last."""
    store: str | None = None
    """What its process group met by; None if it holds none that may be reused."""
    keys: int = 0
    """Number of the test since which that store holds what is set there."""
    open: dict[Way, int] = field(default_factory=dict)
    """Sends and receives, between all ranks of its pool, that wide fixtures have not ended yet."""
    spoiled: bool = False
    """Whether tests have left others on a group that is kept for as long as such a fixture is."""
    tied: bool = False
    """Whether a fixture that its last test left up had used the process group in its set-up."""
    together: bool = False
    """Whether one was up that asks for ``ddp``."""
    family: str = ""
    """That of the tests which left something in its modules; empty if none has."""
    test: str = ""
    """Node id of the last test that it began; empty if it has begun none."""
    dying: float = 0.0
    """When its last stack was seen (monotonic clock); 0 if there is none."""
    captured: dict[str, int] = field(default_factory=dict)
    lost: float = 0.0
    """When its channel closed (monotonic clock); 0 if it is open."""
    condemned: str = ""
    """What the controller saw and killed it for, as a predicate; empty if it did not."""

    refuses_terminal: ClassVar[str] = ""
    """Why descriptors of the terminal cannot be handed to it; empty if they can."""

    def __post_init__(self) -> None:
        self.files = RankFiles()
        self.streams = Streams(self.rank, self.world.world_size)

    @property
    def gone(self) -> bool:
        return self.returncode is not None

    def send(self, message: ToRank, descriptors: tuple[int, ...] = ()) -> None:
        self.channel.send(message, descriptors)

    def order(
        self,
        test: Wording,
        environment: dict[str, str],
        serves: tuple[int, ...],
        file: tuple[int, ...],
    ) -> None:
        """Have it run a test.

        Args:
            test: what all ranks are told.
            environment: its torchrun variables.
            serves: the socket that it is to serve a store on, if it is.
            file: that of a new store of the process group, if there is one.
        """
        changed = dict(environment.items() - self.environment.items())
        self.environment = environment
        self.channel.send_body(test.of(changed, serves=bool(serves)), (*serves, *file))

    @property
    def machine(self) -> Machine | None:
        """Where it is; None in a session on one machine."""
        return None

    def here(self, moment: float) -> float:
        """A moment on the wall clock of its machine, on ours; in seconds since the epoch."""
        machine = self.machine
        return moment if machine is None or machine.clock is None else machine.clock.here(moment)

    def is_stuck_in_death(self, now: float) -> bool:
        """True if it has written its last stack long ago, and still lives.

        After the Python stack comes torch's handler, which allocates memory: where a
        thread died inside the allocator, it waits for ever.
        """
        if not self.dying and self.files.has_fatal_stack():
            self.dying = now
        return self.dying > 0 and now > self.dying + _DEATH_LIMIT

    def output(self, name: str) -> str:
        """Captured output that no report carries, also of a rank that is dead."""
        if (descriptor := self.captured.get(name)) is None:
            return ""
        return os.pread(descriptor, _CAPTURE_LIMIT, 0).decode(errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal, unless the host has said that the process is gone."""
        if self.pid is not None and not self.gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def glance(self) -> tuple[str, float]:
        """State letter of its main thread and seconds of processor time of all of them.

        As the kernel knows them; the letter is empty where that cannot be had.
        """
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return "", 0.0
        return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill_group(self) -> None:
        """Kill it with its children where no host is left to do so."""
        if self.pid is not None and not self.gone:
            processes.kill_group(self.pid)

    def close(self) -> None:
        self.channel.close()
        for descriptor in self.captured.values():
            os.close(descriptor)
        self.captured = {}
        self.files.close()
        self.streams.close()
