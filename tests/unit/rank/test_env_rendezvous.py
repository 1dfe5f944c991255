"""The socket of MASTER_PORT, which one thread replaces while another one may serve on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_ddp.launch import rendezvous
from pytest_ddp.rank.groups import env_rendezvous
from pytest_ddp.rank.groups.env_rendezvous import EnvRendezvous
from pytest_ddp.system.stdlib import os, socket

Begin = Callable[[], int]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[EnvRendezvous]:
    monkeypatch.setattr(env_rendezvous, "_HANDLERS", {"env": "torch's"})
    made = EnvRendezvous()
    yield made
    if made.listening is not None:
        socket.close(made.listening)


@pytest.fixture
def begin(served: EnvRendezvous, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Begins a test with a new socket; returns its port."""

    def begin() -> int:
        with rendezvous.listen(2) as listening:
            port: int = listening.getsockname()[1]
            monkeypatch.setenv("MASTER_ADDR", rendezvous.LOOPBACK)
            monkeypatch.setenv("MASTER_PORT", str(port))
            served.begin([os.dup(listening.fileno())], serve_now=False)
        return port

    return begin


def test_a_replaced_socket_is_not_served(
    served: EnvRendezvous, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that serves while the old socket is closed serves on the new one."""
    begin()
    close = socket.close

    def close_and_serve(descriptor: int) -> None:
        close(descriptor)
        thread = threading.Thread(target=served.serve)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()

    monkeypatch.setattr(socket, "close", close_and_serve)
    port = begin()
    assert served.used_rendezvous()
    store: Any = served.store()
    assert store.port == port


@pytest.mark.parametrize("instead", ["nothing", "a file", "a socket"])
def test_a_socket_that_the_test_has_closed(
    served: EnvRendezvous, begin: Begin, instead: str
) -> None:
    """A closed socket is an error at once; torch would wait five minutes for an answer of its own
    port."""
    begin()
    assert served.listening is not None
    other: Any = None
    if instead == "nothing":
        socket.close(served.listening)
    else:
        other = open(os.devnull) if instead == "a file" else rendezvous.listen(1)  # noqa: SIM115
        os.dup2(other.fileno(), served.listening)
        other.close()
    with pytest.raises(RuntimeError, match="the socket of MASTER_PORT has been closed"):
        served.serve()
    assert not served.used_rendezvous()
