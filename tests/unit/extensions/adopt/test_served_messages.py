"""Messages that this extension adds to those of the core."""

from __future__ import annotations

import pytest

from pytest_ddp.extensions.adopt.ranks import served_messages
from pytest_ddp.extensions.adopt.ranks.served_messages import Inherit, Serve
from pytest_ddp.protocol.messages import EXTENSION_KINDS
from tests.unit.protocol.test_channel_messages import round_trip

KINDS = [kind for kind in EXTENSION_KINDS.values() if kind.__module__ == served_messages.__name__]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_round_trip_of_every_message(kind: type) -> None:
    round_trip(kind)


def test_descriptors_are_counted_by_the_message() -> None:
    assert Serve({}, 0o22).descriptor_count == 11
    assert Inherit((5, 9, 7), last=True).descriptor_count == 3
