"""Records in a file, one JSON object in a line, as they come."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddp_conformance.framework.history import KINDS, Record


class Journal:
    """The writing side: passes each record to the kernel at once."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._owner = os.getpid()

    def add(self, record: Record) -> None:
        """Write a record; does nothing in a forked child, which must not write for its parent."""
        if os.getpid() == self._owner:
            line = json.dumps([type(record).__name__, asdict(record)])
            os.write(self._descriptor, f"{line}\n".encode())


def read(path: Path) -> list[Record]:
    """The records of a file, oldest first; none if it does not exist."""
    if not path.exists():
        return []
    # The last line of a process that was killed may lack its end.
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [_record(*json.loads(line)) for line in lines]


def _record(kind: str, values: dict[str, Any]) -> Record:
    return KINDS[kind](**{name: _tuples(value) for name, value in values.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
