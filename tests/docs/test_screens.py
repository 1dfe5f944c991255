"""The picture of a terminal shows what a run prints."""

from __future__ import annotations

import pytest

from tests.docs.screens import PICTURE, render


@pytest.mark.exhaustive
def test_picture_is_of_a_real_run() -> None:
    assert PICTURE.read_text(encoding="utf-8") == render(), "python -m tests.docs.screens draws it"
