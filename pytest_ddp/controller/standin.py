"""What host and ranks are told of this session, to which they are what a worker is to xdist."""

from __future__ import annotations

import contextlib
import sys
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddp.system.own import json
from pytest_ddp.wire.protocol import Json

_PARSED = pytest.StashKey[Json]()


def invocation(config: pytest.Config) -> tuple[str, ...]:
    """The arguments of pytest, or of the main process where this one is an xdist worker."""
    worker = getattr(config, "workerinput", {})
    arguments = worker.get("ddp_invocation", config.invocation_params.args)
    return tuple(map(str, arguments))


def named_plugins(config: pytest.Config) -> tuple[str, ...]:
    """Plugins given to ``pytest.main`` by name: an object cannot follow into another process."""
    plugins = config.invocation_params.plugins or ()
    return tuple(plugin for plugin in plugins if isinstance(plugin, str))


def remember_options(config: pytest.Config) -> None:
    """Keep what the command line said, before plugins settle what it left open."""
    config.stash[_PARSED] = dict(vars(config.option))


def settled_options(config: pytest.Config) -> Json:
    """Options that plugins have set since: a seed that was drawn, for example."""
    parsed = config.stash.get(_PARSED, None)
    if parsed is None:
        return {}
    now = vars(config.option)
    changed = {name: now[name] for name in now if name not in parsed or now[name] != parsed[name]}
    return _plain(changed)


def worker_input(config: pytest.Config) -> Json:
    """``config.workerinput`` of host and ranks: that of our own worker, or what one would get."""
    own: Json | None = getattr(config, "workerinput", None)
    if own is not None:
        return _plain(own)
    node: Any = _stand_in(config)
    for impl in config.hook.pytest_configure_node.get_hookimpls():
        # A plugin may ask a real node for its gateway. What it then does without what it would
        # have told is seen in the host.
        with contextlib.suppress(Exception):
            impl.function(*(node for _ in impl.argnames))
    return _plain(node.workerinput)


def _stand_in(config: pytest.Config) -> SimpleNamespace:
    told = {
        "workerid": "ddp",
        "workercount": 1,
        "testrunuid": uuid.uuid4().hex,
        "mainargv": list(sys.argv),
    }
    gateway = SimpleNamespace(id="ddp", spec=SimpleNamespace(popen=True, id="ddp"))
    return SimpleNamespace(config=config, workerinput=told, gateway=gateway)


def _plain(values: Json) -> Json:
    """Those that JSON can carry."""
    plain = {}
    for name, value in values.items():
        with contextlib.suppress(TypeError, ValueError):
            plain[name] = json.loads(json.dumps(value))
    return plain
