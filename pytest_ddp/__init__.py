"""Run pytest tests on several ``torch.distributed`` ranks, with one honest verdict.

The plugin is found by pytest through its entry point; nothing needs importing
from here but the type of the ``ddp`` fixture, for annotations::

    from pytest_ddp import Ddp

    @pytest.mark.ddp(world_size=2)
    def test_all_reduce(ddp: Ddp) -> None: ...

PYTEST_DONT_REWRITE: a host has this package imported before its pytest marks the
modules of plugins for rewriting, which is a warning, and with -W error the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ddp.fixture import Ddp, DdpError

__all__ = ["Ddp", "DdpError"]


def __getattr__(name: str) -> Any:
    # A suite without ddp tests pays for nothing but the options.
    if name in __all__:
        from pytest_ddp import fixture  # noqa: PLC0415

        return getattr(fixture, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
