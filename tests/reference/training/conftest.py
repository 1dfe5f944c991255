"""A process group of one rank, as torchrun would have it made."""

from collections.abc import Iterator

import pytest
import torch
from torch._C._distributed_c10d import TCPStore


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models of this size are slowed down by threads, and by far on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    """The environment of rank 0 of 1 with the launcher's store; no process group yet."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return store


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, whatever started the tests."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
