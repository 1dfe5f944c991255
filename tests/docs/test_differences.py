"""docs/nccl.md has the table of differences."""

from __future__ import annotations

from tests.docs.differences import PAGE, render


def test_the_table_is_that_of_the_data() -> None:
    assert PAGE.read_text() == render(), "python -m tests.docs.differences writes it anew"
