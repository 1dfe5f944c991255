"""An annotation of the ``ddp`` fixture for type checkers, which know no plugin's attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddp.fixture import Ddp

if TYPE_CHECKING:
    import torch

    from pytest_ddp.extensions.comms.block import Comms


class DdpWithComms(Ddp):
    """``def test_step(ddp: DdpWithComms)`` in place of ``ddp: Ddp``. It makes no object."""

    if TYPE_CHECKING:

        def comms(self, model: torch.nn.Module | None = None, *, warmup: int = 0) -> Comms:
            """Make a context that records what its block communicates on this rank."""
