"""Import, before the fork, what processes may share of the collected files' imports."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_ddp.rank.birth import preload
from pytest_ddp.rank.birth.ownership import Ownership
from pytest_ddp.rank.birth.sharing import share
from pytest_ddp.rank.birth.wanted import Wanted
from pytest_ddp.wire.hosting import Collected


def imports_of(collected: Collected) -> None:
    """Do the imports; the process that returns may be a fork of the calling one."""
    ours, sys.path[:] = list(sys.path), collected.path
    is_own = Ownership().is_own
    wanted = Wanted(is_own)
    wanted.by(map(Path, (*collected.conftests, *collected.files)))
    imports = wanted.came(collected.came)
    sys.path[:] = ours
    preload.what_wraps_models(wanted.files)
    share(preload.of_torch(imports), frozenset(collected.places), is_own)
