"""torch's elastic agent in the pytest process, without what it takes time for in vain there."""

from __future__ import annotations

import sys
from typing import Any

_MODULE = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"


class LocalRendezvous:
    """Has two functions of torch's rendezvous do less, once torch has imported it."""

    def __init__(self) -> None:
        self._original: dict[str, Any] = {}

    def install(self) -> None:
        """Do so, if it can be done and has not been."""
        module = sys.modules.get(_MODULE)
        own = {"_delay": self._delay, "get_method_name": _method_name}
        if module is not None and not self._original and own.keys() <= vars(module).keys():
            self._original = {name: vars(module)[name] for name in own}
            vars(module).update(own)

    def remove(self) -> None:
        """Put back what was there."""
        if self._original:
            vars(sys.modules[_MODULE]).update(self._original)
            self._original = {}

    def _delay(self, seconds: float | tuple[float, float]) -> None:
        # A range skews the attempts of several nodes; a number waits for what others do.
        handler = sys._getframe(1).f_locals.get("self")
        nodes = getattr(getattr(handler, "_settings", None), "max_nodes", None)
        if not isinstance(seconds, tuple) or nodes != 1:
            self._original["_delay"](seconds)


def _method_name(depth: int = 2) -> str:
    """As torch's, which has ``inspect`` read the files of all of pytest's frames, twice a line."""
    try:
        return sys._getframe(depth).f_code.co_name
    except ValueError:
        return "no_method_name"
