"""A clock that is ahead: the time of day by any name, and no other clock."""

from __future__ import annotations

import datetime
import functools
import os
import pickle
import threading
import time
import timeit
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime as by_name
from pathlib import Path
from time import strftime  # fmt: skip
from time import time as clock

import numpy as np
import pytest
from ddp_conformance.lockstep.clocks import SECONDS, clock_ahead, clocks_gain

from pytest_ddp.system import stdlib

UTC = datetime.UTC


@dataclass
class Job:
    """Keeps a clock from its import on."""

    clock: Callable[[], float] = time.time
    began: datetime.datetime = field(default_factory=by_name.now)


CLOCKS: dict[str, Callable[[], float]] = {
    "time": lambda: float(time.time()),
    "time by name": lambda: float(clock()),
    "time_ns": lambda: time.time_ns() / 1e9,
    "localtime": lambda: time.mktime(time.localtime()),
    "gmtime": lambda: by_name(*time.gmtime()[:6], tzinfo=UTC).timestamp(),
    "strftime by name": lambda: by_name.strptime(strftime("%c"), "%c").timestamp(),
    "ctime": lambda: by_name.strptime(time.ctime(), "%c").timestamp(),
    "asctime": lambda: by_name.strptime(time.asctime(), "%c").timestamp(),
    "now": lambda: datetime.datetime.now().timestamp(),
    "now of a zone": lambda: by_name.now(tz=UTC).timestamp(),
    "utcnow": lambda: by_name.utcnow().replace(tzinfo=UTC).timestamp(),
    "now of a zone without a name": lambda: by_name.now(UTC).timestamp(),
    "now that is kept": lambda: float(Job().began.timestamp()),
    "today": lambda: by_name.today().timestamp(),
    "clock_gettime": lambda: time.clock_gettime(time.CLOCK_REALTIME),
    "clock_gettime_ns": lambda: time.clock_gettime_ns(time.CLOCK_REALTIME) / 1e9,
    "coarse": lambda: time.clock_gettime(5),
    "atomic time": lambda: time.clock_gettime(time.CLOCK_TAI),
    "uuid1": lambda: uuid.uuid1().time / 1e7,
    "uuid1 of a node": lambda: uuid.uuid1(node=1).time / 1e7,
    "datetime64": lambda: float(np.datetime64("now").astype(int)),
    "datetime64 of an array": lambda: float(np.array(["now"], "datetime64[s]").astype(int)[0]),
    "a default": lambda now=time.time: float(now()),
    "an attribute": lambda: float(Job().clock()),
    "a partial": functools.partial(clock),
}


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow")
@pytest.mark.parametrize("name", list(CLOCKS))
def test_the_time_of_day_is_ahead(name: str) -> None:
    """An hour lies between it and the clock before, and less than a second more than is due."""
    read = CLOCKS[name]
    began = time.monotonic()
    before = read()
    with clock_ahead():
        ahead = read()
    after = read()
    took = time.monotonic() - began
    assert SECONDS - 1 <= ahead - before <= SECONDS + 1 + took
    assert -1 <= after - before <= 1 + took


def test_what_is_given_is_converted_as_ever() -> None:
    given = time.gmtime(86400)
    right = (time.localtime(5), time.gmtime(5), time.ctime(5), time.asctime(given))
    with clock_ahead():
        assert (time.localtime(5), time.gmtime(5), time.ctime(5), time.asctime(given)) == right
        assert time.strftime("%Y-%m-%d", given) == "1970-01-02"
        with pytest.raises(TypeError):
            time.localtime("now")  # type: ignore[arg-type]
        assert pickle.loads(pickle.dumps(clock)) is clock
        assert repr(clock) == "<built-in function time>"


STEADY: dict[str, Callable[[], float]] = {
    "monotonic": time.monotonic,
    "monotonic_ns": lambda: time.monotonic_ns() / 1e9,
    "perf_counter by another name": timeit.default_timer,
    "clock_gettime": lambda: time.clock_gettime(time.CLOCK_MONOTONIC),
    "process_time": time.process_time,
    "thread_time_ns": lambda: time.thread_time_ns() / 1e9,
}


@pytest.mark.parametrize("name", list(STEADY))
def test_a_monotonic_clock_is_ahead_only_by_what_is_gained(name: str) -> None:
    read = STEADY[name]
    before = read()
    with clock_ahead():
        assert abs(read() - before) < SECONDS / 2
    with clocks_gain() as gain:
        assert abs(read() - before) < SECONDS / 2
        gain()
        gain()
        assert abs(read() - before - 2 * SECONDS) < SECONDS / 2
    assert abs(read() - before) < SECONDS / 2


def test_the_time_of_day_is_ahead_and_gains_in_one_thread_alone() -> None:
    seen: list[float] = []
    before = time.time()
    with clocks_gain() as gain:
        gain()
        seen.append(time.time())
        other = threading.Thread(target=lambda: seen.append(time.time()))
        other.start()
        other.join()
    assert [round((one - before) / SECONDS) for one in seen] == [2, 1]


def test_files_and_the_plugin_have_the_time_of_the_machine(tmp_path: Path) -> None:
    before = time.time()
    with clock_ahead():
        (tmp_path / "file").touch()
        ours = stdlib.time.time()
    assert abs(ours - before) < SECONDS / 2
    assert abs(os.stat(tmp_path / "file").st_mtime - before) < SECONDS / 2


def test_a_uuid_after_it_is_of_the_time_of_the_machine() -> None:
    before = uuid.uuid1(node=1)
    with clock_ahead():
        ahead = uuid.uuid1(node=1), uuid.uuid1()
    after = uuid.uuid1(node=1)
    assert before.time < after.time < min(one.time for one in ahead)
    assert (ahead[1].node, ahead[1].variant, ahead[1].version) == (
        uuid.getnode(),
        uuid.RFC_4122,
        1,
    )


def test_times_are_of_their_own_types() -> None:
    class Stamp(by_name):
        """One of a library."""

    with clock_ahead():
        now, stamp = by_name.now(), Stamp.now()
        assert type(now) is datetime.datetime
        assert type(stamp) is Stamp
        assert isinstance(by_name(2026, 1, 1), by_name)
        assert pickle.loads(pickle.dumps(now)) == now
