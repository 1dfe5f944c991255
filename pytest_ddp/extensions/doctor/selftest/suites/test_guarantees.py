"""Guarantees that need CUDA: their mutants are caught, and correct code passes."""

import pytest
import torch
from ddp_conformance import Cache, Training, TrainStep
from ddp_conformance.caches.mutants import precomputed
from ddp_conformance.framework.registry import checks_for
from ddp_conformance.framework.verdict import GuaranteeError
from ddp_conformance.lifecycle.mutants import gpu_mutants
from ddp_conformance.model.mutants import on_gpus

# LIF-07 launches seven runs. In six of them NCCL's watchdog waits for ten seconds, and then for its
# report.
pytestmark = pytest.mark.ddp(timeout=600)

EXPECTED = {
    "test_a_mutant_is_caught[LIF-01]": ("passed", ""),
    "test_a_mutant_is_caught[LIF-07]": ("passed", ""),
    "test_a_mutant_is_caught[LIF-08]": ("passed", ""),
    "test_a_mutant_is_caught[MEM-01]": ("passed", ""),
    "test_a_mutant_is_caught[MEM-04]": ("passed", ""),
    "test_a_mutant_is_caught[MOD-01]": ("passed", ""),
    "test_a_mutant_is_caught[MOD-09]": ("passed", ""),
    "test_a_mutant_is_caught[MOD-10]": ("passed", ""),
    "test_right_code_passes[LIF-01]": ("passed", ""),
    "test_right_code_passes[LIF-07]": ("passed", ""),
    "test_right_code_passes[LIF-08]": ("passed", ""),
    "test_right_code_passes[MEM-01]": ("passed", ""),
    "test_right_code_passes[MEM-04]": ("passed", ""),
    "test_right_code_passes[MOD-01]": ("passed", ""),
    "test_right_code_passes[MOD-09]": ("passed", ""),
    "test_right_code_passes[MOD-10]": ("passed", ""),
}


def leave_cuda_tensor(case):
    """A file as a machine with a GPU writes it."""
    torch.save(torch.empty(case.size, 2, device="cuda"), case.directory / precomputed.EXTRA)


MUTANTS = {
    "LIF-01": Training(run=gpu_mutants.assert_in_kernel, traits=gpu_mutants.TRAITS),
    "LIF-07": Training(
        run=gpu_mutants.exit_in_finally, traits=gpu_mutants.TRAITS, deaths=("raises",)
    ),
    "LIF-08": Training(run=gpu_mutants.wait_for_ever, traits=gpu_mutants.TRAITS, timeout=60.0),
    "MEM-01": Cache(precomputed.DeviceOfTheFile, prepare=leave_cuda_tensor),
    "MEM-04": Cache(precomputed.TransformOnDevice),
    "MOD-01": TrainStep(on_gpus.left_unwrapped, on_gpus.GPU),
    "MOD-09": TrainStep(on_gpus.not_converted, on_gpus.SYNC),
    "MOD-10": TrainStep(on_gpus.averages_again, on_gpus.ONCE),
}
TRAINS = Training(run=gpu_mutants.train_on_gpus, traits=gpu_mutants.TRAITS, patience=60.0)
RIGHT = {
    "LIF-01": TRAINS,
    "LIF-07": TRAINS,
    "LIF-08": TRAINS,
    "MEM-01": Cache(precomputed.RefusedByAll, spoil=leave_cuda_tensor),
    "MEM-04": Cache(precomputed.AsksForDevice),
    "MOD-01": TrainStep(on_gpus.sharded, on_gpus.ONCE),
    "MOD-09": TrainStep(on_gpus.converted, on_gpus.SYNC),
    "MOD-10": TrainStep(on_gpus.sharded, on_gpus.ONCE),
}


def put_to(subject, guarantee):
    (check,) = (check for check in checks_for(subject) if check.id == guarantee)
    assert check.obstacle(subject) is None
    check(subject)


@pytest.mark.parametrize("guarantee", MUTANTS)
def test_a_mutant_is_caught(ddp, guarantee):
    with pytest.raises(GuaranteeError, match=rf"^{guarantee} is broken by "):
        put_to(MUTANTS[guarantee], guarantee)


@pytest.mark.parametrize("guarantee", RIGHT)
def test_right_code_passes(ddp, guarantee):
    put_to(RIGHT[guarantee], guarantee)
