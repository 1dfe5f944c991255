"""MEM-05, which needs a GPU for each rank: a mutant is caught, and correct code passes."""

import pytest
from ddp_conformance import TrainLoop
from ddp_conformance.determinism.mutants import loop_mutants
from ddp_conformance.framework.registry import checks_for
from ddp_conformance.framework.verdict import GuaranteeError

pytestmark = pytest.mark.ddp

EXPECTED = {
    "test_memory_on_the_first_gpu": ("passed", ""),
    "test_memory_on_its_own_gpu": ("passed", ""),
}


def put_to_mem_05(make):
    subject = TrainLoop(make, {"gpu"})
    (check,) = (check for check in checks_for(subject) if check.id == "MEM-05")
    check(subject)


def test_memory_on_the_first_gpu(ddp):
    with pytest.raises(GuaranteeError, match=r"rank 1 of GPU 1 allocated \d+ bytes on 0"):
        put_to_mem_05(loop_mutants.OnTheFirstGpu)


def test_memory_on_its_own_gpu(ddp):
    put_to_mem_05(loop_mutants.OnItsOwnGpu)
