"""Ranks work under any umask, and it is their tests' too."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.acceptance.suite import Finished, Suite

SUITE = """
    import json
    import os
    import stat
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist

    def mode(path):
        return stat.S_IMODE(path.stat().st_mode)

    @pytest.mark.ddp(world_size=2)
    def test_modes(ddp, tmp_path, tmp_path_factory):
        total = torch.ones(1)
        dist.all_reduce(total)
        old = os.umask(0)
        os.umask(old)
        (tmp_path / f"written by {ddp.rank}").touch()
        facts = {
            "umask": old,
            "file": mode(tmp_path / f"written by {ddp.rank}"),
            "base": mode(tmp_path_factory.getbasetemp()),
        }
        Path(os.environ["FACTS"], str(ddp.rank)).write_text(json.dumps(facts))

    @pytest.mark.ddp(world_size=2, init=False)
    def test_own_group(ddp):
        dist.init_process_group()
        dist.barrier()
        dist.destroy_process_group()
"""


@pytest.fixture(params=[0o077, 0o027, 0o000], ids="{:03o}".format)
def umask(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    folder = tmp_path / "facts"
    folder.mkdir()
    return folder


@pytest.fixture
def run(suite: Suite, umask: int, facts: Path) -> Finished:
    suite.write("test_suite.py", SUITE)
    (suite.directory / "tmp").mkdir()
    env = {"FACTS": str(facts), "TMPDIR": str(suite.directory / "tmp")}
    own = os.umask(umask)
    try:
        return suite.run(env=env)
    finally:
        os.umask(own)


def test_ranks_keep_the_umask(run: Finished, umask: int, facts: Path) -> None:
    run.assert_outcomes(passed=2)
    for rank in range(2):
        seen = json.loads((facts / str(rank)).read_text())
        assert seen["umask"] == umask
        assert seen["file"] == 0o666 & ~umask
        assert seen["base"] == 0o700
