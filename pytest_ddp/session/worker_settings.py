"""The session's data for host and ranks, which set up pytest from it like an xdist worker."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.junitxml import xml_key

from pytest_ddp.launch.rendezvous import rank_environment
from pytest_ddp.protocol.host_messages import (
    Collected,
    CoverageSettings,
    ImportedModules,
    Json,
    Session,
)
from pytest_ddp.settings.import_log import IMPORT_LOG
from pytest_ddp.settings.option_changes import changed_options
from pytest_ddp.settings.options import Import, Options
from pytest_ddp.system.stdlib import json


def session_message(
    config: pytest.Config,
    options: Options,
    *,
    spawns: bool,
    basetemp: Path,
    coverage: CoverageSettings | None,
) -> Session:
    """The message from which host and ranks set up pytest, sent before collection."""
    return Session(
        spawns=spawns,
        args=_invocation(config),
        argv=tuple(sys.argv),
        program=getattr(sys.modules["__main__"], "__file__", None),
        junit_family=_junit_family(config),
        plugins=_named_plugins(config),
        worker_input=_worker_input(config),
        options=_plain(changed_options(config)),
        basetemp=str(basetemp),
        verbose_output=config.getoption("capture", "no") == "no",
        seed=options.seed,
        imports_in_host=options.import_ is Import.HOST,
        traces=options.trace is not None,
        debug_rank=options.debug_rank,
        measured=coverage,
    )


def collected_message(config: pytest.Config, ddp_items: Iterable[pytest.Item]) -> Collected:
    """The message about the collected tests that the host needs."""
    files = {item.path for item in ddp_items}
    plugins = config.pluginmanager.get_plugins()
    modules = (Path(getattr(plugin, "__file__", None) or "") for plugin in plugins)
    conftests = [path for path in modules if path.name == "conftest.py"]
    above = {parent for file in files for parent in file.parents}
    return Collected(
        files=tuple(sorted(map(str, files))),
        conftests=tuple(str(path) for path in conftests if path.parent in above),
        path=tuple(sys.path),
        places=tuple(rank_environment(0, 1, 0, "")),
        came=tuple(ImportedModules(*each) for each in config.stash.get(IMPORT_LOG, ())),
    )


def _junit_family(config: pytest.Config) -> str | None:
    xml = config.stash.get(xml_key, None)
    return None if xml is None else xml.family


def _invocation(config: pytest.Config) -> tuple[str, ...]:
    """The arguments of pytest; in an xdist worker, those of the main process."""
    worker = getattr(config, "workerinput", {})
    arguments = worker.get("ddp_invocation", config.invocation_params.args)
    return tuple(map(str, arguments))


def _named_plugins(config: pytest.Config) -> tuple[str, ...]:
    """Plugins passed to ``pytest.main`` by name: objects cannot be sent to another process."""
    plugins = config.invocation_params.plugins or ()
    return tuple(plugin for plugin in plugins if isinstance(plugin, str))


def _worker_input(config: pytest.Config) -> Json:
    """``config.workerinput`` for host and ranks: our own, or the one that a worker would get."""
    own: Json | None = getattr(config, "workerinput", None)
    if own is not None:
        return _plain(own)
    node: Any = _stand_in(config)
    for impl in config.hook.pytest_configure_node.get_hookimpls():
        # A plugin may need a real node's gateway, and fail. How it works without the data that it
        # would have put there shows in the host.
        with contextlib.suppress(Exception):
            impl.function(*(node for _ in impl.argnames))
    return _plain(node.workerinput)


def _stand_in(config: pytest.Config) -> SimpleNamespace:
    worker_input = {
        "workerid": "ddp",
        "workercount": 1,
        "testrunuid": uuid.uuid4().hex,
        "mainargv": list(sys.argv),
    }
    gateway = SimpleNamespace(id="ddp", spec=SimpleNamespace(popen=True, id="ddp"))
    return SimpleNamespace(config=config, workerinput=worker_input, gateway=gateway)


def _plain(values: Json) -> Json:
    """The values that JSON can represent."""
    plain = {}
    for name, value in values.items():
        with contextlib.suppress(TypeError, ValueError):
            plain[name] = json.loads(json.dumps(value))
    return plain
