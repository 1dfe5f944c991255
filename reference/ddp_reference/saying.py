"""How ranks that all end with one error say it once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

log = logging.getLogger(__name__)

_LIMIT = timedelta(seconds=30)
"""Seconds that the other ranks wait for the one that calls ``say``."""


def say_once(say: Callable[[], None], *, is_first: bool) -> None:
    """Have one rank call ``say``, and the others wait until it has.

    torchrun stops all ranks when one has ended, and would stop the one that is to speak. Its
    store is there before any process group, and after: the first rank to come speaks. Under
    another launcher it is the one with ``is_first``.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        if is_first:
            say()
        return
    try:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        base, _, _ = next(rendezvous("env://", timeout=_LIMIT))
        store = PrefixStore(f"ddp_reference/saying/{attempt}", base)
        if store.add("speakers", 1) == 1:
            say()
            store.set("said", "")
        store.wait(["said"], _LIMIT)
    except (RuntimeError, OSError) as error:
        log.warning("cannot ask torchrun's store whether it is said: %s", error)
        say()
