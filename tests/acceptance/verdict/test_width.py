"""The text is as wide as the terminal there, and 80 columns wherever else it is read."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.acceptance.suite import UNDER_XDIST, Suite, flat

SOURCE = """
    import pytest
    import torch.distributed as dist


    def a_function_with_a_longer_name(ddp):
        if ddp.rank == 0:
            dist.barrier()


    @pytest.mark.ddp(world_size=2)
    def test_width(ddp):
        a_function_with_a_longer_name(ddp)
"""
SENTENCE = (
    "deadlock: rank 0 waits in barrier #1 of the default group, "
    "rank 1 has ended the test without it"
)


@pytest.mark.parametrize(
    ("env", "args", "is_wide"),
    [
        ({"COLUMNS": "160"}, (), True),
        ({"COLUMNS": "400"}, (), True),
        ({"COLUMNS": "160"}, ("-n1",), True),
        ({"COLUMNS": "40"}, (), False),
        ({"COLUMNS": None}, (), False),
        ({"COLUMNS": "160", "CI": "true"}, (), False),
    ],
)
def test_width(
    new_suite: Callable[[], Suite], env: dict[str, str | None], args: tuple[str, ...], is_wide: bool
) -> None:
    if args and UNDER_XDIST:
        pytest.skip("xdist inside of xdist's own arguments")
    suite = new_suite()
    suite.write("test_width.py", SOURCE)
    run = suite.run("--junitxml=diagnoses.xml", "--ddp-diagnosis=diagnoses", *args, env=env)
    lines = run.stdout.splitlines()
    assert (SENTENCE in lines) is is_wide
    assert SENTENCE in flat(run.stdout)
    xml = (run.directory / "diagnoses.xml").read_text(encoding="utf-8")
    assert SENTENCE.replace(" test", "\n  test") in xml
    (path,) = (run.directory / "diagnoses").glob("*.json")
    (failure,) = json.loads(path.read_text(encoding="utf-8"))["failures"]
    assert failure["verdict"] == SENTENCE
