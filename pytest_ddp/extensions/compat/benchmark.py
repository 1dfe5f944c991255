"""pytest-benchmark: ranks measure together, and the rounds of rank 0 are those of the test.

The plugin derives the number of calls of a function from the duration of the first calls, which
differs between ranks; if the function communicates, different numbers of calls are a deadlock. So
rank 0 leads: before each call whose number depends on a clock it appends an order to a file, which
the other ranks read. It never waits for another rank, so a benchmark on rank 0 alone works as well.
An exchange between all ranks would block it there, and would be part of what is measured.
"""

from __future__ import annotations

import array
import contextlib
import functools
import marshal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddp import fixture
from pytest_ddp.extensions.compat.adapter import Adapter
from pytest_ddp.protocol.host_messages import Json
from pytest_ddp.system.stdlib import base64, json, os, tempfile

_LED = "rounds of a benchmark as rank 0 orders them"

Runner = Callable[[range], float]
"""The plugin's: calls the function so many times, and returns the seconds that this took."""


class Benchmark(Adapter):
    """Ranks measure, and the pytest process has the table and the files."""

    plugin = "pytest-benchmark"

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._side: Leader | Follower | None = None
        self._is_wrapped = False

    def attempt_begins(self, item: pytest.Item) -> Json:
        session = _session(item.config)
        is_benchmark = "benchmark" in getattr(item, "fixturenames", ())
        if not is_benchmark or session.disabled or session.skip:
            return {}
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="ddp-benchmark-")
        # A file for each attempt: a rank of the next one must not read orders of the last.
        descriptor, file = tempfile.mkstemp(dir=self._folder.name)
        os.close(descriptor)
        return {"orders": file}

    def test_begins(self, item: pytest.Item, sent: Json) -> None:
        self._side = None
        if not sent:
            return
        if not self._is_wrapped:
            self._wrap(sys.modules["pytest_benchmark.fixture"].BenchmarkFixture)
        rank = fixture.current().rank
        self._side = Follower(sent["orders"]) if rank else Leader(sent["orders"])
        if rank:
            # The user's file; the ranks would overwrite each other's.
            _session(item.config).options["cprofile_dump"] = False

    def test_ended(self, config: pytest.Config) -> Json:
        part, self._side = self._side, None
        if part is None:
            return {}
        part.end()
        benchmarks = _session(config).benchmarks
        data = {
            "world_size": part.world_size,
            "failed": any(one.has_error for one in benchmarks),
            "measured": [_measured(one) for one in benchmarks if isinstance(part, Leader)],
        }
        benchmarks.clear()
        return data

    def findings(self, item: pytest.Item, by_rank: Mapping[int, Json]) -> str:
        if 0 not in by_rank:
            return ""
        complete = len(by_rank) == by_rank[0]["world_size"]
        failed = not complete or any(data["failed"] for data in by_rank.values())
        for measured in by_rank[0]["measured"]:
            _session(item.config).benchmarks.append(_benchmark(item, failed, **measured))
        return ""

    def _wrap(self, kind: Any) -> None:
        """Make the two methods that depend on a clock follow this rank's role in the test."""
        calibrate = kind._calibrate_timer
        # Of releases since 5.3.
        until_precise = getattr(kind, "_run_until_precise", None)

        @functools.wraps(calibrate)
        def agreed(bench: Any, runner: Runner) -> Any:
            if self._side is None:
                return calibrate(bench, runner)
            return self._side.calibrate(functools.partial(calibrate, bench), runner)

        @functools.wraps(until_precise or calibrate)
        def agreed_rounds(bench: Any, runner: Runner, loops: range, stats: Any, most: int) -> None:
            assert until_precise is not None
            run = functools.partial(until_precise, bench)
            if self._side is None:
                run(runner, loops, stats, most)
            else:
                self._side.run_until_precise(run, runner, loops, stats, most)

        kind._calibrate_timer = agreed
        if until_precise is not None:
            kind._run_until_precise = agreed_rounds
        self._is_wrapped = True


# ------------------------------------------------------------------ in a rank


class Leader:
    """Rank 0: writes each order for the other ranks before it carries it out itself."""

    def __init__(self, file: str) -> None:
        self.world_size = fixture.current().world_size
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        followers = range(1, self.world_size)
        self._bells = [_bell(file, rank, os.O_NONBLOCK) for rank in followers]

    def calibrate(self, calibrate: Callable[[Runner], Any], runner: Runner) -> Any:
        """The plugin's own calibration, each of whose calls is an order."""

        def led(loops: range) -> float:
            self._order(loops=len(loops))
            return runner(loops)

        with self._telling_of_failure():
            found = duration, iterations, _ = calibrate(led)
            self._order(duration=duration, iterations=iterations)
        return found

    def run_until_precise(
        self, run: Callable[..., None], runner: Runner, loops: range, stats: Any, most: int
    ) -> None:
        """The plugin's own loop, which is given rounds that were run a few ahead of it.

        The number doubles each time, because an order for each round would cost more than a short
        function. Rounds that the plugin's loop does not use are in no statistics.
        """
        ahead: deque[float] = deque()
        done = 0

        def led(loops: range) -> float:
            nonlocal done
            if not ahead:
                rounds = min(max(1, done), most - done)
                self._order(rounds=rounds)
                ahead.extend([runner(loops) for _ in range(rounds)])
                done += rounds
            return ahead.popleft()

        with self._telling_of_failure():
            run(led, loops, stats, most)
            self._order(rounds=0)

    def end(self) -> None:
        """The test is over: ends the wait of each follower for an order."""
        self._order(problem="has ended the test without a benchmark")
        for descriptor in (self._file, *self._bells):
            os.close(descriptor)

    @contextlib.contextmanager
    def _telling_of_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._order(problem=f"has broken off its benchmark: {type(error).__name__}: {error}")
            raise

    def _order(self, **order: Any) -> None:
        os.write(self._file, json.dumps(order).encode() + b"\n")
        for bell in self._bells:
            # A full pipe wakes its follower as well.
            with contextlib.suppress(BlockingIOError):
                os.write(bell, b".")


class Follower:
    """Another rank: carries out the orders of rank 0 one after the other."""

    def __init__(self, file: str) -> None:
        self.world_size = fixture.current().world_size
        self._file = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        self._bell = _bell(file, fixture.current().rank)
        self._read = b""
        """Orders that were read and are not yet carried out."""

    def calibrate(self, calibrate: Callable[[Runner], Any], runner: Runner) -> Any:
        """Call as often as rank 0 does while it calibrates, and find what it finds.

        Raises:
            DdpError: rank 0 has ended the test, or its function has failed.
        """
        while "loops" in (order := self._next()):
            runner(range(order["loops"]))
        iterations = order["iterations"]
        return order["duration"], iterations, range(iterations)

    def run_until_precise(
        self, run: Callable[..., None], runner: Runner, loops: range, stats: Any, most: int
    ) -> None:
        """Run as many rounds as rank 0 has run when it is content.

        Raises:
            DdpError: as for :meth:`calibrate`.
        """
        while rounds := self._next()["rounds"]:
            for _ in range(rounds):
                stats.update(runner(loops))

    def end(self) -> None:
        """The test is over."""
        os.close(self._file)
        os.close(self._bell)

    def _next(self) -> Json:
        with fixture.current().phase(_LED):
            while b"\n" not in self._read:
                if not (more := os.read(self._file, 1 << 12)):
                    os.read(self._bell, 1 << 12)
                self._read += more
        line, _, self._read = self._read.partition(b"\n")
        order: Json = json.loads(line)
        if problem := order.get("problem"):
            raise fixture.DdpError(
                f"rank 0 {problem}. Rank 0 sets how often the other ranks call the function of a "
                "benchmark: let the benchmark run on all ranks, or on rank 0 among others"
            )
        return order


def _bell(file: str, rank: int, flags: int = 0) -> int:
    """A pipe that wakes a waiting follower, which then reads the file again.

    Orders do not go through the pipe: if no follower reads, a full pipe would block rank 0.
    """
    name = f"{file}-{rank}"
    with contextlib.suppress(FileExistsError):
        os.mkfifo(name, 0o600)
    # For both ends, so that neither waits for the other to open it.
    return os.open(name, os.O_RDWR | os.O_CLOEXEC | flags)


def _measured(bench: Any) -> Json:
    plain = sys.modules["pytest_benchmark.utils"]
    profile = bench.cprofile_stats
    return {
        "group": bench.group,
        "iterations": bench.iterations,
        # As the plugin would write them: what JSON cannot carry, by its text.
        "options": json.loads(plain.safe_dumps(_named(bench.options))),
        "extra_info": json.loads(plain.safe_dumps(bench.extra_info)),
        "seconds": _text(array.array("d", bench.stats.data).tobytes()),
        "profile": _text(marshal.dumps(profile.stats)) if profile else "",
    }


def _named(options: Json) -> Json:
    name = sys.modules["pytest_benchmark.utils"].funcname
    return {key: name(value) if callable(value) else value for key, value in options.items()}


# ------------------------------------------------------------------ in the pytest process


def _benchmark(
    item: pytest.Item,
    failed: bool,
    *,
    group: str | None,
    iterations: int,
    options: Json,
    extra_info: Json,
    seconds: str,
    profile: str,
) -> Any:
    """The plugin's record of a benchmark, as if the pytest process had measured it."""
    stats = sys.modules["pytest_benchmark.stats"]
    called = getattr(item, "callspec", None)
    bench = SimpleNamespace(
        name=item.name,
        fullname=item.nodeid,
        group=group,
        param=called and called.id,
        params=called and called.params,
        extra_info=extra_info,
        cprofile_stats=_profile(profile) if profile else None,
        has_error=failed,
    )
    made = stats.Metadata(bench, iterations=iterations, options=options)
    made.stats.data.extend(array.array("d", base64.b64decode(seconds)))
    return made


def _profile(text: str) -> Any:
    found = marshal.loads(base64.b64decode(text))
    kind = sys.modules["pytest_benchmark.stats"].pstats.Stats
    return kind(SimpleNamespace(stats=found, create_stats=lambda: None))


def _session(config: pytest.Config) -> Any:
    return vars(config)["_benchmarksession"]


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
