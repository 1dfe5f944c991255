"""What the model must not have; its metrics are the matter of `make conformance`."""

from __future__ import annotations

from ddp_reference.windows.model import WindowGNN

from tests.reference.windows.helpers import FEATURES


def test_the_model_has_no_buffers() -> None:
    # DDP would broadcast them per batch, and validation batches differ in number by rank.
    assert list(WindowGNN(FEATURES).buffers()) == []
