"""The torchrun variables of a rank, and those who read them too early."""

from __future__ import annotations

import os
import sys


class RankEnvironment:
    """Sets the variables of a test and takes back those of the one before.

    Between tests they stay, because wide fixtures are torn down then.
    """

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def apply(self, variables: dict[str, str]) -> None:
        """Change what differs only: of two tests with the same number of ranks, little does."""
        for name in self._before.keys() - variables.keys():
            _set(name, self._before.pop(name))
        for name, value in variables.items():
            found = os.environ.get(name)
            self._before.setdefault(name, found)
            if value != found:
                os.environ[name] = value
        _correct_lightning(int(variables["RANK"]))


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _correct_lightning(rank: int) -> None:
    # Lightning computes this when it is imported; a host that imported it before the
    # fork would make every rank believe that it is rank 0.
    module = sys.modules.get("lightning_utilities.core.rank_zero")
    if module is not None:
        module.rank_zero_only.rank = rank
