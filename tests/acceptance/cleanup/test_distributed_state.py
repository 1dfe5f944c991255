"""What a test leaves in torch.distributed beside its groups does not reach the next test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.recorded import Run, run_recorded, source
from tests.acceptance.suite import Suite

LEFT = {"rpc": ("start_rpc(ddp, tmp_path)", "RPC")}
"""Name: what a test leaves although it could have ended it, a word of the warning."""

SPENT = {
    "ended_rpc": ("start_rpc(ddp, tmp_path); use_rpc(ddp); rpc.shutdown()", ""),
    "backend": ("dist.Backend.register_backend('own', print, devices=['cpu'])", ""),
    "rendezvous": ("dist.register_rendezvous_handler('own', print)", ""),
    "symmetric_memory": ("enable_symmetric_memory()", ""),
}
"""Name: what a test does that torch has no means to take back."""

RESTORED = {
    "debug_level": (
        "assert dist.get_debug_level() == dist.DebugLevel.OFF\n"
        "    dist.set_debug_level(dist.DebugLevel.INFO)",
        "debug level",
    ),
    "mesh": (
        "assert not _mesh_resources.mesh_stack\n    dist.init_device_mesh('cpu', (2,)).__enter__()",
        "current device mesh",
    ),
}
"""Name: what a test changes, a word of the warning."""

PREAMBLE = """
    import warnings

    import pytest
    import torch
    import torch.distributed as dist
    import torch.distributed.rpc as rpc
    from torch.distributed import _symmetric_memory
    from torch.distributed.device_mesh import _mesh_resources

    def start_rpc(ddp, tmp_path):
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path}/rpc")
        names = {"rank": ddp.rank, "world_size": ddp.world_size}
        rpc.init_rpc(f"worker{ddp.rank}", rpc_backend_options=options, **names)

    def use_rpc(ddp):
        peer = f"worker{1 - ddp.rank}"
        ones = rpc.remote(peer, pair)
        assert rpc.rpc_sync(peer, sum_of, args=(ones,)) == 2

    def pair():
        return torch.ones(2)

    def sum_of(reference):
        return reference.to_here().sum().item()

    def enable_symmetric_memory():
        assert not _symmetric_memory._group_name_to_store
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _symmetric_memory.enable_symm_mem_for_group(dist.group.WORLD.group_name)
"""

TEMPLATE = """
    @pytest.mark.ddp(world_size=2)
    def test_{name}(ddp, tmp_path):
        {deed}

    @pytest.mark.ddp(world_size=2)
    def test_again_{name}(ddp, tmp_path):
        {deed}

    @pytest.mark.ddp(world_size=2)
    def test_after_{name}(ddp, tmp_path):
        dist.all_reduce(torch.ones(1))
"""

WIDE = """
    import os

    import pytest
    import torch
    import torch.distributed as dist
    import torch.distributed.rpc as rpc

    @pytest.fixture(scope="module")
    def served(tmp_path_factory):
        store = tmp_path_factory.getbasetemp().parent / "wide-rpc"
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{store}")
        rank = int(os.environ["RANK"])
        rpc.init_rpc(f"worker{rank}", rpc_backend_options=options, rank=rank, world_size=2)
        yield
        rpc.shutdown()

    def pair():
        return torch.ones(2)

    @pytest.mark.ddp(world_size=2)
    def test_wide_first(ddp, served):
        assert rpc.rpc_sync(f"worker{1 - ddp.rank}", pair).sum() == 2

    @pytest.mark.ddp(world_size=2)
    def test_wide_last(ddp, served):
        assert rpc.rpc_sync(f"worker{1 - ddp.rank}", pair).sum() == 2
"""

AFTER_WIDE = """
    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_after_wide(ddp):
        pass
"""


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Run:
    suite = new_suite()
    cases = LEFT | SPENT | RESTORED
    suite.write("test_state.py", source(PREAMBLE, TEMPLATE, cases))
    suite.write("test_wide_1.py", WIDE)
    suite.write("test_wide_2.py", AFTER_WIDE)
    return run_recorded(suite, "--ddp-timeout=30")


def test_verdicts(run: Run) -> None:
    run.finished.assert_outcomes(passed=3 * len(LEFT | SPENT | RESTORED) + 3)


@pytest.mark.parametrize("name", LEFT | SPENT)
def test_rank_is_replaced(run: Run, name: str) -> None:
    first, again, after = (run.pids(f"test_{which}{name}") for which in ("", "again_", "after_"))
    assert len({*first, *again, *after}) == 6


@pytest.mark.parametrize("name", LEFT)
def test_what_could_be_ended_is_named(run: Run, name: str) -> None:
    (warning,) = run.warnings_about(f"test_{name}")
    assert LEFT[name][1] in warning
    assert "behind" in warning


@pytest.mark.parametrize("name", SPENT)
def test_what_cannot_be_taken_back_is_not_blamed(run: Run, name: str) -> None:
    assert run.warnings_about(f"test_{name}") == []


@pytest.mark.parametrize("name", RESTORED)
def test_change_is_restored(run: Run, name: str) -> None:
    assert run.pids(f"test_{name}") == run.pids(f"test_after_{name}")
    (warning,) = run.warnings_about(f"test_{name}")
    assert RESTORED[name][1] in warning
    assert "restored" in warning


def test_rpc_of_a_wide_fixture_serves_its_tests(run: Run) -> None:
    first, last, after = map(run.pids, ("test_wide_first", "test_wide_last", "test_after_wide"))
    assert first == last
    assert not {*last} & {*after}
    assert run.warnings_about("test_wide_first") == []
    assert run.warnings_about("test_wide_last") == []
