"""An annotation of the ``ddp`` fixture for type checkers, which know no plugin's attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddp.fixture import Ddp

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_ddp.extensions.worlds.ranks.across import AcrossWorlds


class DdpWithWorlds(Ddp):
    """``def test_parity(ddp: DdpWithWorlds)`` in place of ``ddp: Ddp``. It makes no object."""

    if TYPE_CHECKING:
        across_worlds: AcrossWorlds
        carry: Path
        world: str | None
