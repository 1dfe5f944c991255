"""What node 0 pays for ranks of other machines: ``python -m benchmarks machines``.

Node 0 is real: pytest, its coordinator, its agent with ranks of its own. The other machines are
simulated here, in one process and without torch: each has its own line to the coordinator and
answers for its ranks what ranks of a test that passes answer, with the files that these leave. What
the pytest process and the coordinator do for one more test is counted in processor time, by the
kernel.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import secrets
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import SUITES
from pytest_ddp.extensions.machines import version_check
from pytest_ddp.extensions.machines.agent_connection import (
    AgentConnection,
    FrameKind,
    WireFrame,
    connect,
)
from pytest_ddp.protocol.channel import dumps, loads
from pytest_ddp.protocol.host_messages import (
    Collected,
    HostReady,
    RankExited,
    RankStarted,
    StartRank,
)
from pytest_ddp.protocol.messages import (
    Began,
    Done,
    Finish,
    Finished,
    Go,
    Message,
    Passed,
    Phase,
    RankReady,
    RunTest,
)
from pytest_ddp.settings.rules import MAX_LOCAL_WORLD_SIZE

_LIMIT = 300.0
_SIZES = ((2, 4), (2, 16), (4, 32), (8, 64), (64, 64), (16, 128), (32, 256), (64, 512))
"""Machines, and ranks of all together."""
_WARM = 5
"""Tests before the first that counts: the ranks come up with them."""
_LOOK = 0.2
"""Seconds between two looks of an agent at what ranks leave in files."""
_PID = 1 << 30
"""A number that no process has."""
_PAGE = 2, bytes(6144)
"""The file of a rank that changes with each test: its place among the rank's files, its content."""


@dataclasses.dataclass
class Traffic:
    """What went over the lines of simulated machines."""

    frames: int = 0
    size: int = 0

    def add(self, frame: WireFrame) -> None:
        self.frames += 1
        self.size += len(frame.data)


class Machine:
    """A machine that is simulated."""

    def __init__(self, line: AgentConnection, node: int, folder: str, traffic: Traffic) -> None:
        self._line, self._traffic = line, traffic
        self._is_ready = False
        self._changed: set[int] = set()
        """Ranks whose page is not as the coordinator has it."""
        self._next_look = 0.0
        versions = {**version_check.versions(), "the current folder": folder}
        who = {"node": node, "nodes": None, "name": f"m{node}", "address": "127.0.0.1"}
        self._send(
            WireFrame(FrameKind.JOIN, data=json.dumps({**who, "versions": versions}).encode())
        )

    def turn(self) -> bool:
        """Answer what has come; False once pytest has ended."""
        for frame in self._line.receive():
            self._traffic.add(frame)
            if frame.kind is FrameKind.END:
                return False
            if frame.kind is FrameKind.MESSAGE:
                self._answer(frame.serial, loads(frame.data))
        return not self._line.at_end

    def live(self) -> None:
        """Give a sign of life, and send what waits."""
        if time.monotonic() > self._next_look:
            for serial in self._changed:
                self._send(WireFrame(FrameKind.FILE, serial, *_PAGE))
            self._changed.clear()
            self._next_look = time.monotonic() + _LOOK
        self._line.beat()
        self._line.flush()

    def close(self) -> None:
        self._line.close()

    def _answer(self, serial: int, message: Message) -> None:
        match message:
            case Collected() if not self._is_ready:
                self._is_ready = True
                self._tell(HostReady(None))
            case StartRank(started):
                self._tell(RankStarted(started, _PID))
                self._tell(RankReady(started, _PID, ()), started)
            case RunTest(waits_for_go=True):
                self._tell(Began(message.test), serial)
            case RunTest():
                self._end_test(serial, message.test)
            case Go():
                self._end_test(serial, message.test)
            case Finish():
                self._tell(Finished(None), serial)
                self._send(WireFrame(FrameKind.CLOSED, serial))
                self._tell(RankExited(serial, 0))

    def _end_test(self, serial: int, test: int) -> None:
        self._changed.add(serial)
        self._tell(_done(test), serial)

    def _tell(self, message: Message, serial: int = 0) -> None:
        self._send(WireFrame(FrameKind.MESSAGE, serial, data=dumps(message).encode()))

    def _send(self, frame: WireFrame) -> None:
        self._traffic.add(frame)
        self._line.send(frame)


def _done(test: int) -> Done:
    now = time.time_ns()
    return Done(
        test=test,
        passed=tuple(Passed(phase, now, now, 0) for phase in Phase),
        counts=(),
        group_doubt=None,
        holds_group=False,
        needs_peers=False,
        rank_doubt=(),
        used_rendezvous=False,
        irreversible=False,
        modules_changed=False,
        changes=(),
        setup_show="",
        exit_reason=None,
        exit_code=None,
    )


@dataclasses.dataclass(frozen=True)
class Spent:
    """What one more test takes, which is sent to all ranks."""

    machines: int
    ranks: int
    pytest: float
    """Processor seconds of the pytest process."""
    coordinator: float
    frames: float
    """Frames over the lines of other machines than node 0, for each of their ranks."""
    size: float
    """Bytes in these frames."""


def session(machines: int, ranks: int, count: int) -> Spent:
    """Run one; on one machine it is a session without coordinator and agents.

    Raises:
        RuntimeError: it failed; its output is the message.
    """
    print(f"{machines} machines, {ranks} ranks, {count} tests", file=sys.stderr)
    secret = secrets.token_hex(32)
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results")
        place = {"RANK": "0", "WORLD_SIZE": str(machines), "MASTER_PORT": str(port)}
        variables = {
            "MASTER_ADDR": "127.0.0.1",
            "PYTEST_DDP_SECRET": secret,
            "BENCHMARK_COUNT": str(count),
            "BENCHMARK_WARM": str(_WARM),
            "BENCHMARK_WORLD_SIZE": str(ranks),
            "BENCHMARK_RESULTS": str(results),
            **place,
        }
        command = [sys.executable, "-m", "pytest", str(SUITES / "machines.py"), "-q", "-x"]
        options = ["-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={SUITES}"]
        if machines > 1:
            options.append("--ddp-machines=torchrun")
        with Path(folder, "output").open("w+") as output:
            process = subprocess.Popen(
                [*command, *options],
                cwd=folder,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            traffic = _simulate(process, machines, (port, secret), folder)
            if process.wait(_LIMIT) != 0:
                output.seek(0)
                raise RuntimeError(output.read())
        found = json.loads(results.read_text())
    others = (ranks - math.ceil(ranks / machines)) * (count + _WARM)
    frames, size = (traffic.frames / others, traffic.size / others) if others else (0.0, 0.0)
    return Spent(machines, ranks, found["pytest"], found["coordinator"], frames, size)


def _simulate(
    process: subprocess.Popen[bytes], machines: int, coordinator: tuple[int, str], folder: str
) -> Traffic:
    """Be all machines but node 0 until pytest ends."""
    port, secret = coordinator
    selector, traffic = selectors.DefaultSelector(), Traffic()
    living = {}
    for node in range(1, machines):
        line = _line(process, port, secret.encode())
        living[line] = Machine(line, node, folder, traffic)
        selector.register(line, selectors.EVENT_READ)
    while living and process.poll() is None:
        ready = {key.fileobj for key, _ in selector.select(0.2)}
        for line, machine in list(living.items()):
            if line in ready and not machine.turn():
                selector.unregister(line)
                machine.close()
                del living[line]
                continue
            machine.live()
    for machine in living.values():
        machine.close()
    return traffic


def _line(process: subprocess.Popen[bytes], port: int, secret: bytes) -> AgentConnection:
    while process.poll() is None:
        try:
            return connect("127.0.0.1", port, secret)
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("pytest has ended before its coordinator listened")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number: int = listening.getsockname()[1]
        return number


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print a markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks machines", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest size, few tests")
    given = parser.parse_args(arguments)
    sizes, count = (_SIZES[:1], 10) if given.quick else (_SIZES, 100)
    alone = [(1, n) for n in sorted({n for _, n in sizes}) if n <= MAX_LOCAL_WORLD_SIZE]
    found = [session(machines, ranks, count) for machines, ranks in (*alone, *sizes)]
    print("\n".join(table(found)))


def table(found: Sequence[Spent]) -> Iterator[str]:
    """Rows of markdown."""
    yield "| CPU of one more test | pytest | coordinator | both, for a rank | frames | bytes |"
    yield "|---|--:|--:|--:|--:|--:|"
    for spent in found:
        both = (spent.pytest + spent.coordinator) / spent.ranks
        times = (
            f"{spent.pytest * 1e3:.1f} ms | {spent.coordinator * 1e3:.1f} ms | {both * 1e3:.2f} ms"
        )
        machines = "one machine" if spent.machines == 1 else f"{spent.machines} machines"
        line = f"{spent.frames:.1f} | {spent.size:.0f}" if spent.machines > 1 else "- | -"
        yield f"| {machines}, {spent.ranks} ranks | {times} | {line} |"
