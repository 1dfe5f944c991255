"""The torchrun variables in a rank's environment."""

from __future__ import annotations

import functools
import os as public_os
from typing import Any

from pytest_ddp.system.stdlib import os


class RankEnvironment:
    """Sets the variables of a test, and undoes those of the test before.

    They stay set between tests, since wide fixtures are torn down then.
    """

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}
        self._applied: dict[str, str] = {}
        self._raw: dict[bytes, bytes] = {}
        """The applied variables as the mapping below os.environ has them."""

    def apply(self, variables: dict[str, str]) -> None:
        """Set only the variables that differ, which nearly always are none."""
        raw: Any = getattr(public_os.environ, "_data", {})
        untouched = self._raw.items() <= raw.items()
        if untouched and variables is self._applied:
            return
        for name in self._before.keys() - variables.keys():
            _set(name, self._before.pop(name))
        for name, value in self._changed(variables, untouched).items():
            found = public_os.environ.get(name)
            self._before.setdefault(name, found)
            if value != found:
                public_os.environ[name] = value

    def _changed(self, variables: dict[str, str], untouched: bool) -> dict[str, str]:
        """The variables that may have to be set: all, unless the last ones are untouched.

        Decoding each value from the environment to compare it takes ten times as long.
        """
        known, self._applied = self._applied, variables
        self._raw = {_encode(name): _encode(value) for name, value in variables.items()}
        if not untouched:
            return variables
        return {name: value for name, value in variables.items() if known.get(name) != value}


@functools.lru_cache(maxsize=64)
def _encode(text: str) -> bytes:
    return os.fsencode(text)


def _set(name: str, value: str | None) -> None:
    if value is None:
        public_os.environ.pop(name, None)
    else:
        public_os.environ[name] = value
