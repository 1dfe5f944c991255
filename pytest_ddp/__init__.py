"""Run pytest tests on several ``torch.distributed`` ranks, with one honest verdict.

The plugin is found by pytest through its entry point; nothing needs importing
from here but the type of the ``ddp`` fixture, for annotations, and the warnings'
category, for filters such as ``-W ignore::pytest_ddp.DdpWarning``::

    from pytest_ddp import Ddp

    @pytest.mark.ddp(world_size=2)
    def test_all_reduce(ddp: Ddp) -> None: ...

PYTEST_DONT_REWRITE: a host has this package imported before its pytest marks the
modules of plugins for rewriting, which is a warning, and with -W error the end.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ddp.fixture import Ddp, DdpError
    from pytest_ddp.verdict.notices import DdpWarning

__all__ = ["Ddp", "DdpError", "DdpWarning"]

_HOMES = {
    "Ddp": "pytest_ddp.fixture",
    "DdpError": "pytest_ddp.fixture",
    "DdpWarning": "pytest_ddp.verdict.notices",
}


def __getattr__(name: str) -> Any:
    # A suite without ddp tests pays for nothing but the options.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
