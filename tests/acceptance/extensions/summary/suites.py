"""Suites of which a report shows what pytest's own report shows in no test."""

OUTSIDE = """
    import os
    import signal
    from pathlib import Path

    import pytest

    PIDS = Path(__file__).with_name("pids")

    @pytest.mark.ddp(world_size=1)
    def test_good(ddp):
        PIDS.write_text(str(os.getpid()))

    def test_then():
        os.kill(int(PIDS.read_text()), signal.SIGKILL)
"""
