"""The settings of ``portable=``, what a finding makes of a test, and a handle in a hang."""

from __future__ import annotations

import pytest

from tests.acceptance.suite import Suite, flat

SETTINGS = """
import pytest, torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

def lose():
    dist.all_reduce(torch.ones(4), async_op=True)
    dist.barrier()

@pytest.mark.ddp(world_size=2)
def test_of_the_session(ddp):
    lose()

@pytest.mark.ddp(world_size=2, portable="off")
def test_off(ddp):
    lose()

@pytest.mark.ddp(world_size=2, portable="cpu:gloo,cuda:nccl")
def test_mixed(ddp):
    lose()

@pytest.mark.ddp(world_size=2)
@pytest.mark.filterwarnings("error")
def test_strict(ddp):
    lose()

@pytest.mark.ddp(world_size=2)
def test_unread(ddp):
    functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)

@pytest.mark.ddp(world_size=2)
def test_that_fails(ddp):
    lose()
    assert not ddp.rank, "its own text"
"""


def test_warnings_by_the_ini_file(suite: Suite) -> None:
    suite.write("test_settings.py", SETTINGS)
    finished = suite.run("-o", "ddp_portable=nccl", "-o", "ddp_portable_findings=warn")
    verdicts = [result.verdict for result in finished.results.values()]
    assert verdicts == ["passed", "passed", "passed", "failed", "passed", "failed"]
    assert finished["test_strict"].text.startswith("not portable to nccl: lost handle: ")
    assert "its own text" in finished["test_that_fails"].text
    said = flat(finished.stdout)
    assert "NotPortableWarning: not portable to nccl: lost handle: nothing waited for" in said
    assert "NotPortableWarning: not portable to cpu:gloo,cuda:nccl: lost handle" in said
    assert "unread result: nothing read 1 result of functional collectives (ranks 0-1)" in said
    assert said.count("NotPortableWarning") == 4  # the test that fails has one beside its failure


EXPECTED = """
import pytest, torch
import torch.distributed as dist

pytestmark = [
    pytest.mark.ddp(world_size=2, portable="nccl"), pytest.mark.filterwarnings("error")
]

@pytest.mark.xfail(strict=True)
def test_expected(ddp):
    dist.all_reduce(torch.ones(4), async_op=True)
    dist.barrier()

@pytest.mark.xfail(strict=True, raises=ValueError)
def test_other(ddp):
    dist.all_reduce(torch.ones(4), async_op=True)
    dist.barrier()
"""


@pytest.mark.parametrize("severity", ["fail", "warn"])
def test_a_finding_may_be_expected(suite: Suite, severity: str) -> None:
    suite.write("test_expected.py", EXPECTED)
    finished = suite.run("-o", f"ddp_portable_findings={severity}")
    finished.assert_outcomes(xfailed=1, failed=1)
    text = finished["test_other"].text
    assert text.startswith("not portable to nccl: lost handle: ")
    assert text.rstrip().endswith("DDP-061: python -m pytest_ddp explain DDP-061")


def test_a_wrong_value_is_an_error_of_the_collection(suite: Suite) -> None:
    suite.write(
        "test_wrong.py",
        "import pytest\n@pytest.mark.ddp(world_size=2, portable='gloo')\ndef test_x(): ...",
    )
    said = flat(suite.run().stdout)
    assert "@pytest.mark.ddp(portable='gloo'): it is the backend of production" in said
    assert "test_wrong.py::test_x" in said


def test_a_wrong_option(suite: Suite) -> None:
    suite.write("test_settings.py", SETTINGS)
    finished = suite.run("--ddp-portable=gloo")
    assert "--ddp-portable=gloo: it is the backend of production" in flat(finished.stderr)


def test_a_hang_names_the_handle_that_was_dropped(suite: Suite) -> None:
    suite.write(
        "test_hang.py",
        """
        import pytest, torch
        import torch.distributed as dist

        @pytest.mark.ddp(world_size=2, timeout=15)
        def test_dropped(ddp):
            if ddp.rank == 0:
                dist.isend(torch.ones(4), 1)
                dist.barrier()
            else:
                dist.barrier()
                dist.recv(torch.ones(4), 0)
        """,
    )
    text = flat(suite.run()["test_dropped"].text)
    assert "rank 0 dropped the handle of a send to rank 1 at test_hang.py:8 before" in text
