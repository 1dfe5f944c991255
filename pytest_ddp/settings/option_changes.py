"""Options that plugins change after the command line was parsed, for example a seed that is drawn.

Imported by every pytest run.
"""

from __future__ import annotations

from typing import Any

import pytest

_PARSED = pytest.StashKey[dict[str, Any]]()


def remember_options(config: pytest.Config) -> None:
    """Keep the options as parsed, before plugins change them."""
    config.stash[_PARSED] = dict(vars(config.option))


def changed_options(config: pytest.Config) -> dict[str, Any]:
    """The options that plugins have changed since."""
    parsed = config.stash.get(_PARSED, None)
    if parsed is None:
        return {}
    now = vars(config.option)
    return {name: now[name] for name in now if name not in parsed or now[name] != parsed[name]}
