"""Build the first blocks of a model and run them: ``attempt FACTORY COUNT``.

With a file in the place of the number it writes the names of the blocks there. A process of
its own, started by :func:`ddp_reference.diagnosis.first_failing_block`.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_reference.leaving import leave_group

Build = Callable[[], nn.Module]


def main(factory: str, what: str) -> None:
    sys.path.insert(0, os.getcwd())
    builders, inputs = resolve_name(factory)()
    if what.isdigit():
        run(builders[: int(what)], inputs)
    else:
        Path(what).write_text("\n".join(name_of(build) for build in builders))


def name_of(build: Build) -> str:
    """A function's name, or what a partial or a class says of itself."""
    return str(getattr(build, "__qualname__", build)).replace("\n", " ")


def run(builders: Sequence[Build], inputs: tuple[Tensor, ...]) -> None:
    """Construction, wrap, forward and backward."""
    model: nn.Module = Blocks([build() for build in builders])
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    loss = sum_of(model(*inputs))
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    del model, loss
    leave_group()


class Blocks(nn.Module):
    """One block after the other; the first takes all inputs."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, *inputs: Tensor) -> Any:
        values: Any = inputs
        for block in self.blocks:
            values = block(*values) if isinstance(values, tuple) else block(values)
        return values


def sum_of(values: Any) -> Tensor:
    """Something to go backward from."""
    tensors = [values] if isinstance(values, Tensor) else list(values)
    return torch.stack([tensor.float().sum() for tensor in tensors]).sum()


if __name__ == "__main__":
    main(*sys.argv[1:])
