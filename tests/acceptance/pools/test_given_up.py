"""A reply to an operation of ``ddp`` that a test gave up does not reach the next test."""

from __future__ import annotations

from tests.acceptance.suite import LOADFILE, Suite

SOURCE = """
    import os
    import signal
    import sys
    import threading
    import time

    import pytest

    pytestmark = pytest.mark.ddp(world_size=2)


    class GaveUp(Exception):
        pass


    def give_up(number, frame):
        raise GaveUp


    def alarm_when_it_waits(thread):
        seen = None
        while True:
            frame = sys._current_frames()[thread]
            place = frame.f_code.co_name, frame.f_lasti
            if place == seen and place[0] == "exchange":
                return os.kill(os.getpid(), signal.SIGALRM)
            seen = place
            time.sleep(0.2)


    def wait_for(file):
        while not file.exists():
            time.sleep(0.01)


    def test_gives_up(ddp, tmp_path):
        if ddp.rank == 0:
            before = signal.signal(signal.SIGALRM, give_up)
            alarm = threading.Thread(target=alarm_when_it_waits, args=(threading.get_ident(),))
            alarm.start()
            with pytest.raises(GaveUp):
                ddp.gather("old 0")
            alarm.join()
            signal.signal(signal.SIGALRM, before)
            tmp_path.joinpath("given up").touch()
            wait_for(tmp_path / "complete")
        else:
            wait_for(tmp_path / "given up")
            assert ddp.gather("old 1") == ["old 0", "old 1"]
            tmp_path.joinpath("complete").touch()


    def test_next(ddp):
        assert ddp.gather(f"new {ddp.rank}") == ["new 0", "new 1"]
        assert ddp.broadcast(f"of {ddp.rank}") == "of 0"
"""


def test_the_next_test_gets_its_own_replies(suite: Suite) -> None:
    suite.write("test_given_up.py", SOURCE)
    finished = suite.run(*LOADFILE)
    finished.assert_outcomes(passed=2)
