"""Makes torch's elastic agent faster in the pytest process, where it wastes time."""

from __future__ import annotations

import sys
from typing import Any

_MODULE = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"


class LocalRendezvous:
    """Replaces two functions of torch's rendezvous by faster ones, once torch has imported it."""

    def __init__(self) -> None:
        self._original: dict[str, Any] = {}

    def install(self) -> None:
        """Replace both functions if torch's module is imported and has them; do nothing the second
        time."""
        module = sys.modules.get(_MODULE)
        own = {"_delay": self._delay, "get_method_name": _method_name}
        if module is not None and not self._original and own.keys() <= vars(module).keys():
            self._original = {name: vars(module)[name] for name in own}
            vars(module).update(own)

    def remove(self) -> None:
        """Restore the original functions."""
        if self._original:
            vars(sys.modules[_MODULE]).update(self._original)
            self._original = {}

    def _delay(self, seconds: float | tuple[float, float]) -> None:
        # A range of seconds only spreads the attempts of several nodes, so one node needs no delay;
        # a single number is a wait for other processes, and stays.
        handler = sys._getframe(1).f_locals.get("self")
        nodes = getattr(getattr(handler, "_settings", None), "max_nodes", None)
        if not isinstance(seconds, tuple) or nodes != 1:
            self._original["_delay"](seconds)


def _method_name(depth: int = 2) -> str:
    """Do as torch's, but without ``inspect``, which reads all frames' files twice per log line."""
    try:
        return sys._getframe(depth).f_code.co_name
    except ValueError:
        return "no_method_name"
