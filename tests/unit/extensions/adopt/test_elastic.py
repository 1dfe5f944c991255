"""What torch's rendezvous takes time for: a delay that a single node does not need, and stacks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as _module
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from pytest_ddp.extensions.adopt.elastic import LocalRendezvous

dynamic_rendezvous: Any = _module


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What torch was still asked to wait for."""
    asked: list[Any] = []
    monkeypatch.setattr(dynamic_rendezvous, "_delay", asked.append)
    rendezvous = LocalRendezvous()
    rendezvous.install()
    rendezvous.install()
    yield asked
    rendezvous.remove()
    assert dynamic_rendezvous._delay == asked.append


def _handler(max_nodes: int) -> Any:
    run = str(uuid.uuid4())
    parameters = RendezvousParameters(
        "c10d", "localhost:0", run, min_nodes=1, max_nodes=max_nodes, last_call_timeout=1
    )
    backend = C10dRendezvousBackend(HashStore(), run)
    return dynamic_rendezvous.create_handler(HashStore(), backend, parameters)


def _outer(depth: int) -> tuple[str, str]:
    def inner() -> tuple[str, str]:
        before = dynamic_rendezvous.get_method_name(depth)
        rendezvous = LocalRendezvous()
        rendezvous.install()
        try:
            return before, dynamic_rendezvous.get_method_name(depth)
        finally:
            rendezvous.remove()

    return inner()


def test_methods_have_the_names_that_torch_gives_them() -> None:
    assert _outer(1) == ("inner", "inner")
    assert _outer(2) == ("_outer", "_outer")
    assert _outer(10_000) == ("no_method_name", "no_method_name")


def test_what_is_missing_in_another_torch_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dynamic_rendezvous, "get_method_name")
    before = dict(vars(dynamic_rendezvous))
    rendezvous = LocalRendezvous()
    rendezvous.install()
    assert vars(dynamic_rendezvous) == before


def test_a_single_node_does_not_wait(delays: list[Any]) -> None:
    handler = _handler(max_nodes=1)
    assert handler.next_rendezvous().world_size == 1
    handler.shutdown()
    assert not delays


def test_several_nodes_do(delays: list[Any]) -> None:
    handler = _handler(max_nodes=2)
    assert handler.next_rendezvous().world_size == 1
    handler.shutdown()
    assert (0, 0.3) in delays
