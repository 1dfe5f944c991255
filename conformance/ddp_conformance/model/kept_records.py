"""Records of a run, kept for what looks at them in the same process."""

from __future__ import annotations

from ddp_conformance.framework.history import Record
from ddp_conformance.launched.journal import Journal


class KeptRecords:
    """Keeps records, and writes them into a journal if there is one."""

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal
        self.seen: list[Record] = []
        """Oldest first."""

    def add(self, record: Record) -> None:
        """Keep a record."""
        self.seen.append(record)
        if self._journal is not None:
            self._journal.add(record)
