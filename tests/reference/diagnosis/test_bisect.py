"""The bisection finds the first failing block, and how it fails."""

import signal
from pathlib import Path

import pytest
from ddp_reference.diagnosis import first_failing_block

from tests.warm import interpreter

pytestmark = pytest.mark.usefixtures("warm_ranks")
HERE = Path(__file__).parent


def test_a_model_that_works_has_none() -> None:
    report = first_failing_block("models:sound", cwd=HERE)
    assert (report.failing, str(report)) == (None, "all 3 blocks pass")


def test_the_block_that_crashes_is_found_with_its_line() -> None:
    report = first_failing_block("models:crashing", cwd=HERE)
    assert report.failing == 3
    assert report.blocks[3] == "Crashing"
    assert report.crash is not None
    assert report.crash.cause is not None
    assert report.crash.cause.returncode == -signal.SIGSEGV
    assert "models.py:" in report.crash.cause.place
    assert str(report).startswith("block 4 of 6 fails: Crashing\nrank 0 died of SIGSEGV\n")


def test_ranks_are_wrapped_in_ddp() -> None:
    report = first_failing_block("models:mismatched", ranks=2, cwd=HERE)
    assert report.failing == 0
    assert str(report).startswith("block 1 of ")
    assert report.crash is not None
    assert report.crash.cause is not None
    assert "shapes cannot be multiplied" in report.crash.cause.error


def test_a_factory_that_is_not_there_is_reported() -> None:
    with pytest.raises(ValueError, match=r"models:nothing gives no blocks:\nrank 0 raised"):
        first_failing_block("models:nothing", cwd=HERE)


def test_the_command_exits_with_1() -> None:
    command = ["-m", "ddp_reference.diagnosis", "bisect", "models:crashing"]
    done = interpreter.run(command, cwd=HERE, timeout=240)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("block 4 of 6 fails: Crashing\n")
