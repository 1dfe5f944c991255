"""A clock that is ahead: the time of day by any name, and no other clock."""

from __future__ import annotations

import datetime
import os
import pickle
import time
from collections.abc import Callable
from datetime import datetime as by_name
from pathlib import Path
from time import strftime  # fmt: skip
from time import time as clock

import pytest
from ddp_conformance.lockstep.clocks import SECONDS, clock_ahead

UTC = datetime.UTC

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
    "today": lambda: by_name.today().timestamp(),
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


def test_other_clocks_are_as_they_are(tmp_path: Path) -> None:
    before = time.time()
    with clock_ahead():
        (tmp_path / "file").touch()
        monotonic = time.monotonic() - time.clock_gettime(time.CLOCK_MONOTONIC)
    assert abs(monotonic) < SECONDS / 2
    assert abs(os.stat(tmp_path / "file").st_mtime - before) < SECONDS / 2


def test_times_are_of_their_own_types() -> None:
    class Stamp(by_name):
        """One of a library."""

    with clock_ahead():
        now, stamp = by_name.now(), Stamp.now()
        assert type(now) is datetime.datetime
        assert type(stamp) is Stamp
        assert isinstance(by_name(2026, 1, 1), by_name)
        assert pickle.loads(pickle.dumps(now)) == now
        kept = time.time
    assert abs(kept() - time.time()) < SECONDS / 2, "a module may have imported it in the block"
