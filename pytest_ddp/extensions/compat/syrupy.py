"""syrupy: snapshots of ranks are used, and written, as those of one test.

Each rank compares with the snapshot's file. Snapshots to write go to the session of the pytest
process. It also gets the snapshots that ranks have used, because it deletes unused ones.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddp.extensions.compat.adapter import Adapter
from pytest_ddp.protocol.host_messages import Json
from pytest_ddp.system.stdlib import base64


class Syrupy(Adapter):
    """Ranks compare, and the pytest process counts and writes."""

    plugin = "syrupy"

    def test_ended(self, config: pytest.Config) -> Json:
        session: Any = vars(config).get("_syrupy")
        if session is None or not session._assertions:
            return {}
        data = {
            "used": [_used(assertion) for assertion in session._assertions],
            "written": list(_written(session)),
        }
        session._assertions.clear()
        session._queued_snapshot_writes.clear()
        return data

    def findings(self, item: pytest.Item, by_rank: Mapping[int, Json]) -> str:
        session: Any = vars(item.config)["_syrupy"]
        for words in by_rank.values():
            for used in words["used"]:
                _use(session, item, **used)
        by_index: dict[tuple[str, Any], dict[str, list[int]]] = {}
        for rank, words in by_rank.items():
            for extension, index, data in words["written"]:
                by_index.setdefault((extension, index), {}).setdefault(data, []).append(rank)
        for (extension, index), versions in by_index.items():
            if len(versions) > 1:
                ranks = ", ".join(str(ranks[0]) for ranks in versions.values())
                return f"ranks {ranks} have different values for snapshot {index} of the test"
            _write(session, item, extension, index, next(iter(versions)))
        return ""


# ------------------------------------------------------------------ in a rank


def _used(assertion: Any) -> Json:
    results = [
        {
            "snapshot_location": result.snapshot_location,
            "snapshot_name": result.snapshot_name,
            "created": result.created,
            "updated": result.updated,
            "success": result.success,
        }
        for result in assertion.executions.values()
    ]
    return {"extension": _name(type(assertion.extension)), "results": results}


def _written(session: Any) -> Iterator[tuple[str, Any, str]]:
    for (extension, _), writes in session._queued_snapshot_writes.items():
        for (_, index), data in writes.items():
            # Of binary formats as well as of text.
            kind, raw = ("b", data) if isinstance(data, bytes) else ("s", data.encode())
            yield _name(extension), index, kind + base64.b64encode(raw).decode()


def _name(extension: type) -> str:
    return f"{extension.__module__}:{extension.__qualname__}"


# ------------------------------------------------------------------ in the pytest process


def _use(session: Any, item: pytest.Item, extension: str, results: list[Json]) -> None:
    known = _extension(session, extension)
    if known is None:
        return
    location = _location(item)
    executions = {
        number: SimpleNamespace(final_data=None, test_location=location, **result)
        for number, result in enumerate(results)
    }
    session.register_request(
        SimpleNamespace(
            session=session, extension=known, test_location=location, executions=executions
        )
    )


def _write(session: Any, item: pytest.Item, extension: str, index: Any, data: str) -> None:
    known = _extension(session, extension)
    raw = base64.b64decode(data[1:])
    if known is not None:
        content = raw if data[0] == "b" else raw.decode()
        session.queue_snapshot_write(known, _location(item), content, index)


def _location(item: pytest.Item) -> Any:
    # Not imported here, because syrupy is optional; if it is installed, it has imported it.
    return sys.modules["syrupy.location"].PyTestLocation(item)


def _extension(session: Any, name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        found: Any = functools.reduce(getattr, path.split("."), sys.modules[module])
        return found()
    except (KeyError, AttributeError):
        # A class that exists only in ranks. Its snapshots must not count as unused.
        session.pytest_session.config.option.disable_unused_snapshots = True
        return None
