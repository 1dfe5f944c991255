"""The codes of extensions stand in the table beside those of the core."""

from __future__ import annotations

from pytest_ddp import extending
from pytest_ddp.verdict import codes


def test_the_table_has_the_codes_of_all_extensions() -> None:
    names = extending.names("codes")
    assert {"adopt", "comms", "portable"} <= {*names}
    found = [entry.code for name in names for entry in extending.load(name, "codes").ENTRIES]
    assert found
    assert {*found} <= codes.by_code().keys()
    assert {*found}.isdisjoint(entry.code for entry in codes.ENTRIES)
