"""What makes a process a rank. Imports torch, which the bare nursery does without."""

from __future__ import annotations

import contextlib
import os
import traceback
from pathlib import Path
from typing import Any, NoReturn

from pytest_ddp.channel import Channel
from pytest_ddp.protocol import StartRank
from pytest_ddp.rank import faults, forks, instruments, landmarks, output
from pytest_ddp.rank.link import Link
from pytest_ddp.rank.runner import Runner
from pytest_ddp.rank.session import Items


def live(channel: Channel, order: StartRank, session: Any, items: Items) -> NoReturn:
    """Become the rank: never returns into the frames of the host below."""
    with contextlib.suppress(PermissionError):  # a spawned rank leads its session already
        os.setsid()
    files = os.path.join(order.directory, f"rank-{order.serial}")
    faults.install(f"{files}.fault")
    forks.watch()
    try:
        _own_tmp_path_base(session.config, order)
        output.capture_afresh(session.config)
        made = instruments.make(files, traces=order.traces)
        landmarks.install(made.lifecycle)
        link = Link(channel, made.side_channel, made.surveyor)
        Runner(link, made, session, items).live(order.serial, os.getpid())
    except BaseException:
        # Standard error may be a capture file that ends with the rank.
        faults.write(traceback.format_exc())
    faults.leave(1)


def _own_tmp_path_base(config: Any, order: StartRank) -> None:
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        base = Path(config.option.basetemp).parent
        factory._given_basetemp = base / f"ddp-rank{order.rank}-{order.serial}"
        factory._basetemp = None
