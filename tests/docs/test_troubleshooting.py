"""docs/troubleshooting.md says what pytest_ddp/verdict/codes.py does."""

from __future__ import annotations

from tests.docs.troubleshooting import PAGE, render


def test_page_is_that_of_the_table() -> None:
    assert PAGE.read_text() == render(), "python -m tests.docs.troubleshooting writes it anew"
