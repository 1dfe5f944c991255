"""Messages that this extension adds to those of the core."""

from __future__ import annotations

import pytest

from pytest_ddp.extensions.machines import machine_messages
from pytest_ddp.protocol.messages import EXTENSION_KINDS
from tests.unit.protocol.test_channel_messages import round_trip

KINDS = [kind for kind in EXTENSION_KINDS.values() if kind.__module__ == machine_messages.__name__]


def test_they_are_known_by_their_import() -> None:
    assert machine_messages.NodeJoined in KINDS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_round_trip_of_every_message(kind: type) -> None:
    round_trip(kind)
