"""The torchrun variables of a rank."""

from __future__ import annotations

import os as public_os


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
            found = public_os.environ.get(name)
            self._before.setdefault(name, found)
            if value != found:
                public_os.environ[name] = value


def _set(name: str, value: str | None) -> None:
    if value is None:
        public_os.environ.pop(name, None)
    else:
        public_os.environ[name] = value
