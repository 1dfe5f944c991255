"""The private names without which no rank can run, looked up before one is forked.

A release of torch or pytest may remove them. Then each test would end in a traceback of ours, on
every rank. ``docs/private-names.md`` has the other private names too, and what is missing without
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from operator import attrgetter

NEEDED = (
    "_pytest._code.code:ReprEntryNative",
    "_pytest._code.code:ReprExceptionInfo",
    "_pytest._io:TerminalWriter",
    "_pytest.config:create_terminal_writer",
    "_pytest.config:PytestPluginManager._set_initial_conftests",
    "_pytest.debugging:PdbTrace",
    "_pytest.debugging:_postmortem_exc_or_tb",
    "_pytest.debugging:pytestPDB",
    "_pytest.junitxml:_check_record_param_type",
    "_pytest.junitxml:xml_key",
    "_pytest.logging:catching_logs",
    "torch._C:_dispatch_keyset_full_after",
    "torch._C._distributed_c10d:FileStore",
    "torch._C._distributed_c10d:PrefixStore",
    "torch._C._distributed_c10d:get_debug_level",
    "torch._C._distributed_c10d:set_debug_level",
    "torch.distributed:ProcessGroup._get_backend",
    "torch.distributed:ProcessGroup._get_sequence_number_for_group",
    "torch.distributed:ProcessGroup._set_group_name",
    "torch.distributed.distributed_c10d:_World.pg_group_ranks",
    "torch.distributed.distributed_c10d:_World.pg_map",
    "torch.distributed.distributed_c10d:_World.pg_names",
    "torch.distributed.distributed_c10d:_abort_process_group",
    "torch.distributed.distributed_c10d:_resolve_process_group",
    "torch.distributed.distributed_c10d:_set_pg_timeout",
    "torch.distributed.distributed_c10d:_world",
)
"""Each as a module and a path in it. A name that is a module's own function or class can be looked
up before there is an object of it; attributes that objects set themselves cannot."""


def problem() -> str | None:
    """Why no rank can run with these versions of torch and pytest; None if ranks can."""
    missing = list(_missing())
    if not missing:
        return None
    name = "pytest" if missing[0].startswith("_pytest") else "torch"
    return (
        f"{name} {version(name)} lacks {', '.join(missing)}, which ranks need: install a version "
        "that docs/versions.md of pytest-ddp names"
    )


def _missing() -> Iterator[str]:
    for name in NEEDED:
        module, _, path = name.partition(":")
        try:
            attrgetter(path)(import_module(module))
        except (ImportError, AttributeError):
            yield name.replace(":", ".")
