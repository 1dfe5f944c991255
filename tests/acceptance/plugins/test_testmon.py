"""pytest-testmon's choice of tests, with the real plugin."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from tests.acceptance.plugins.test_zoo import PLACE
from tests.acceptance.suite import INNER, Finished, Suite

CODE = """
    def on_all():
        return "all"

    def on_last():
        return "last"

    def plain():
        return "plain"
"""
SOURCE = """
    import os

    import pytest
    import torch.distributed as dist

    import code_under_test as code

    ddp = pytest.mark.ddp(world_size=2)

    @ddp
    def test_on_all(ddp):
        code.on_all()
        dist.barrier()

    @ddp
    def test_on_last(ddp):
        if ddp.rank == 1:
            code.on_last()

    def test_plain():
        code.plain()

    @ddp
    def test_without():
        pass

    @ddp
    def test_fails(ddp):
        assert ddp.rank == 0

    @ddp
    def test_dies(ddp):
        if ddp.rank == 1:
            os._exit(3)
"""
BROKEN = {"test_fails": "failed", "test_dies": "failed"}
"""What has failed is run again until it passes."""


@pytest.fixture(scope="module")
def runs(new_suite: Callable[[], Suite]) -> dict[str, Finished]:
    """Sessions of one suite, between which one function changes."""
    suite = new_suite()
    suite.write("test_suite.py", SOURCE)
    suite.write("code_under_test.py", CODE)
    found = {name: _run(suite, name) for name in ("first", "nothing")}
    code = suite.directory / "code_under_test.py"
    for name in ("last", "all", "plain"):
        code.write_text(code.read_text().replace(f'"{name}"', f'"other {name}"'))
        found[name] = _run(suite, name)
    return found


def _run(suite: Suite, name: str) -> Finished:
    path = os.pathsep.join(map(str, (INNER, PLACE)))
    names = ("xdist", "pytest_cov.plugin", "testmon.pytest_testmon", "ddp")
    plugins = [word for name in names for word in ("-p", name)]
    env = {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    counted = ("--cov=code_under_test", f"--cov-report=json:{name}.json")
    return suite.run(*plugins, "-p", "cacheprovider", "--testmon", *counted, timeout=120, env=env)


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        ("first", {"test_on_all", "test_on_last", "test_plain", "test_without"}),
        ("nothing", set()),
        ("last", {"test_on_last"}),
        ("all", {"test_on_all"}),
        ("plain", {"test_plain"}),
    ],
)
def test_a_test_runs_if_what_any_rank_has_run_changes(
    runs: dict[str, Finished], changed: str, chosen: set[str]
) -> None:
    found = {
        name.rpartition("::")[2]: result.verdict for name, result in runs[changed].results.items()
    }
    assert found == dict.fromkeys(chosen, "passed") | BROKEN, runs[changed].tail()


def test_coverage_counts_what_ranks_ran(runs: dict[str, Finished]) -> None:
    report = json.loads((runs["first"].directory / "first.json").read_text())
    assert report["totals"]["missing_lines"] == 0
