"""The four stages of the training script keep the lifecycle guarantees on two ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddp_conformance import Subject, Training, parametrize_with_checks
from ddp_reference.train import main
from ddp_reference.training.data import SampleKey

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

SMALL = (
    *("--data", "data.pt", "--checkpoint", "last.pt"),
    *("--samples", "40", "--batch-size", "16", "--epochs", "1"),
    *("--width", "8", "--depth", "1", "--min-num-params", "100"),
)

COMPILED = ("--samples", "36")
"""An eighth is for validation, the rest is two whole batches: the compiler meets one shape less."""


def training(name: str, stage: str, *options: str, traits: tuple[str, ...] = ()) -> Training:
    """One configuration of the program; one way to die is tried for most."""
    return Training(
        run=main,
        argv=(*SMALL, "--stage", stage, *options),
        traits=frozenset({"exact", *traits}),
        name=name,
        index=SampleKey.counted,
        deaths=("raises", "is killed", "exits with 0") if stage == "operator" else ("is killed",),
    )


SUBJECTS = [
    training("operator_ddp", "operator", traits=("falls_back",)),
    training("diffusion_fsdp2", "diffusion", "--strategy", "fsdp2"),
    training("prior_fsdp1", "steady-prior", "--strategy", "fsdp1"),
    training(
        "consistency_compiled_before_ddp",
        "consistency",
        *COMPILED,
        *("--compile", "before", "--compile-backend", "aot_eager"),
        traits=("compiles",),
    ),
    training(
        "prior_compiled_after_fsdp2",
        "steady-prior",
        *COMPILED,
        *("--strategy", "fsdp2", "--compile", "after", "--compile-backend", "eager"),
        # One sharded unit in another: each has graphs of its own.
        *("--min-num-params", "300"),
        traits=("compiles",),
    ),
]


@parametrize_with_checks(SUBJECTS, world_size=(2,), share_ranks=True)
def test_reference(subject: Subject, check: BoundCheck) -> None:
    check(subject)
