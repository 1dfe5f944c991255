"""What may be concluded from a backend's numbers, and how its groups are ended."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddp.rank.groups import default_group
from pytest_ddp.rank.groups.backends import NO_PROMISES, MissingBackend, missing, promises_of


class Backend:
    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name


class Group:
    """A process group with the methods that the code under test calls."""

    def __init__(self, numbered: bool, **names: str) -> None:
        self._numbered = numbered
        self._names = names
        self._device_types = list(names)

    def _get_backend(self, device: str) -> Backend:
        return Backend(self._names[device])

    def _get_sequence_number_for_group(self) -> int:
        if not self._numbered:
            raise RuntimeError("ProcessGroup own does not yet support sequence numbers.")
        return 7


class InPython:
    """One whose backend is a class of Python, which torch takes for the group itself."""

    def _get_sequence_number_for_group(self) -> int:
        raise RuntimeError("ProcessGroup undefined does not yet support sequence numbers.")


def test_gloo_numbers_messages_and_records_everything() -> None:
    promises = promises_of(Group(True, cpu="gloo", cuda="gloo"))
    assert (promises.numbered, promises.messages_numbered, promises.recorded) == (True, True, True)


def test_nccl_numbers_collectives_alone_and_its_waits_prove_nothing() -> None:
    promises = promises_of(Group(True, cuda="nccl"))
    assert (promises.numbered, promises.messages_numbered) == (True, False)
    assert not promises.recorded


@pytest.mark.parametrize(
    "group",
    [
        Group(True, cpu="gloo", cuda="nccl"),  # the number is NCCL's
        Group(True, xpu="xccl"),
        Group(True, cpu="ucc", cuda="ucc"),
        Group(False, cpu="own"),
        Group(False, cpu="gloo"),  # gloo under a name of somebody else's
        Group(True),
        InPython(),
    ],
)
def test_of_others_nothing_is_concluded(group: Any) -> None:
    assert promises_of(group) == NO_PROMISES


def test_what_torch_has_is_not_missing() -> None:
    for backend in ("gloo", "cpu:gloo", "fake", "cpu:gloo,cuda:fake"):
        assert missing(backend) is None


@pytest.mark.parametrize("name", ["xccl", "ucc", "hccl"])
def test_what_the_machine_lacks_is_reported_with_what_there_is(name: str) -> None:
    found = missing(f"cpu:gloo,cuda:{name}")
    assert found is not None
    assert found.is_of_the_machine
    assert f"no backend {name} here; there are fake, gloo" in found.reason


def test_a_slip_of_the_pen_is_of_no_machine() -> None:
    found = missing("glo")
    assert found == MissingBackend(found.reason if found else "", is_of_the_machine=False)
    assert found is not None
    # Other tests of this process may have registered more backends.
    assert found.reason.startswith("no backend is called glo; there are fake, gloo")
    assert ". Did you mean gloo?\n" in found.reason


@pytest.mark.parametrize(
    ("groups", "ended_by"),
    [
        ([Group(True, cpu="gloo")], "destroyed"),
        ([Group(True, cuda="nccl")], "aborted"),
        ([Group(True, cpu="gloo", cuda="nccl")], "aborted"),
        ([Group(True, cpu="gloo"), Group(True, cuda="nccl")], "aborted"),
        ([InPython()], "destroyed"),
    ],
)
def test_nccl_is_aborted_since_its_shutdown_waits_for_dead_peers(
    groups: Any, ended_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(default_group, "_abort_process_group", lambda: shown.append("aborted"))
    monkeypatch.setattr(default_group, "destroy_process_group", lambda: shown.append("destroyed"))
    default_group.end(groups)
    assert shown == [ended_by]
