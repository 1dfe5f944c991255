"""What several unit tests are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.ends import Ends, both


@pytest.fixture
def ends() -> Iterator[Ends]:
    with both() as made:
        yield made
