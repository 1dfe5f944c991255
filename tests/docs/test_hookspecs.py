"""docs/hookspecs.md says what pytest_ddp/hookspecs.py does."""

from __future__ import annotations

from tests.docs.hookspecs import PAGE, render


def test_page_is_that_of_the_module() -> None:
    assert PAGE.read_text() == render(), "python -m tests.docs.hookspecs writes it anew"
