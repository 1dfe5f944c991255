"""pytest's own plugins that can be switched off: ddp tests have their verdicts without them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest

from tests.acceptance.suite import Suite

SOURCE = """
    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_passes(ddp):
        ddp.barrier()


    @pytest.mark.ddp(world_size=2)
    def test_fails_on_one(ddp):
        assert ddp.rank == 0


    def test_without_ranks():
        pass
"""


@pytest.fixture
def suite(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("test_it.py", SOURCE)
    return suite


def run_without(suite: Suite, name: str, *args: str) -> str:
    """Run without a plugin, not by ``Suite.run``, whose options need the terminal plugin; returns
    the output."""
    command = (sys.executable, "-m", "pytest", "-p", f"no:{name}", "-p", "no:cacheprovider", *args)
    run = subprocess.run(
        command,
        cwd=suite.directory,
        env={k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return run.stdout + run.stderr


@pytest.mark.parametrize("name", ["terminal", "capture"])
def test_verdicts_without_a_plugin(suite: Suite, name: str) -> None:
    run_without(suite, name, "--junitxml=results.xml")
    cases = ET.parse(suite.directory / "results.xml").getroot().iter("testcase")
    verdicts = {
        case.get("name"): [child.tag for child in case if child.tag != "properties"]
        for case in cases
    }
    assert verdicts == {
        "test_passes": [],
        "test_fails_on_one": ["failure"],
        "test_without_ranks": [],
    }


def test_a_plugin_that_ddp_tests_need(suite: Suite) -> None:
    output = run_without(suite, "tmpdir")
    assert "remove -p no:tmpdir" in output
    assert "Traceback" not in output
