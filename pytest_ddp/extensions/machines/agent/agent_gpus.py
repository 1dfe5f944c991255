"""The GPUs of this machine: which there are, and leases on them for node 0.

The locks are taken here, where other pytest processes look for them, and end with this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pytest_ddp.extensions.machines.machine_messages import GpusLeased, LeaseGpus, ReleaseGpus
from pytest_ddp.launch import gpus
from pytest_ddp.launch.gpus import LeaseError, PendingLease


def found() -> dict[str, Any]:
    """The GPUs, for node 0; their tool may take seconds while the driver sleeps."""
    names = gpus.visible_devices() if gpus.count_gpus() else ()
    return {"gpus": names, "gpu_kind": gpus.device_kind()}


class Leases:
    """Leases of one session."""

    def __init__(self) -> None:
        self._claims: dict[int, PendingLease] = {}
        self._waiting: dict[int, PendingLease] = {}
        self._answers: list[GpusLeased] = []
        """Answers to requests that failed without a wait."""

    @property
    def patience(self) -> float:
        """Seconds until the next look at the locks; infinite if nothing waits."""
        return gpus.LEASE_INTERVAL if self._waiting else float("inf")

    def take(self, lease: LeaseGpus | ReleaseGpus) -> None:
        """Start to wait for GPUs, return them, or stop waiting."""
        match lease:
            case LeaseGpus(number):
                try:
                    self._claims[number] = self._waiting[number] = _claim(lease)
                except (ValueError, OSError, pytest.UsageError) as error:
                    self._answers.append(GpusLeased(number, (), str(error)))
            case ReleaseGpus(number):
                self._release(number)

    def answers(self) -> Iterator[GpusLeased]:
        """Yield the answers to requests that failed at once, and to waits that are over."""
        yield from self._answers
        self._answers.clear()
        for number, claim in list(self._waiting.items()):
            try:
                devices, refusal = claim.take(), ""
            except LeaseError as error:
                devices, refusal = (), str(error)
            if devices or refusal:
                del self._waiting[number]
                yield GpusLeased(number, devices, refusal)

    def close(self) -> None:
        """Release all leases, now that no rank uses the GPUs any more."""
        for number in list(self._claims):
            self._release(number)

    def _release(self, number: int) -> None:
        self._waiting.pop(number, None)
        if (claim := self._claims.pop(number, None)) is not None:
            claim.close()


def _claim(lease: LeaseGpus) -> PendingLease:
    return PendingLease(
        lease.count, limit=lease.limit, holder=lease.holder, ranks_per_gpu=lease.ranks_per_gpu
    )
