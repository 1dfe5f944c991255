"""The settings of this extension, and which backend a group has in production. Imports no torch."""

from __future__ import annotations

import enum
from typing import NamedTuple

from pytest_ddp.extensions.comms import OPTION_GROUP
from pytest_ddp.settings import rules
from pytest_ddp.settings.mark import MarkArgument
from pytest_ddp.settings.options import Setting

OFF = "off"
_RULE = (
    "it is the backend of production as init_process_group takes it, with NCCL in it: nccl, or "
    "cpu:gloo,cuda:nccl; off for none"
)
_HOST = "cpu"


class Severity(enum.StrEnum):
    """What a finding makes of a test."""

    FAIL = "fail"
    WARN = "warn"


def check(value: object) -> str:
    """A production backend; empty for none.

    Raises:
        ValueError: it is none, or has no NCCL, so that there is nothing to judge.
    """
    if value in ("", OFF, None):
        return ""
    try:
        text = rules.check_backend(value)
    except ValueError:
        raise ValueError(_RULE) from None
    if Production(text).of(None, on_host=False) != "nccl":
        raise ValueError(_RULE)
    return text


class Production(NamedTuple):
    """The backends of groups where the tested code is used in earnest."""

    default: str
    """The backend of the default group, as ``init_process_group`` takes it."""

    def of(self, explicit: str | None, *, on_host: bool) -> str:
        """The backend that an operation of a group is sent by; empty if none takes it.

        Args:
            explicit: what the group was made with; None for the default group's, which in a test
                on CPUs is gloo in NCCL's place.
            on_host: whether its tensors are on the CPU in production as well, as those of
                collectives of objects are where there is a backend for the CPU.
        """
        pairs = rules.pairs(explicit or self.default)
        by_device = dict(pairs)
        if "" in by_device:  # one backend for all devices
            return by_device[""]
        devices = [device for device, _ in pairs if device != _HOST]
        if not devices or (on_host and _HOST in by_device):
            return by_device.get(_HOST, "")
        return by_device[devices[0]]


_PORTABLE = Setting(
    *("portable", "BACKEND", "string", "", check, ""),
    help="say where a test that passes would hang or go wrong on the backend of production: nccl, "
    "or cpu:gloo,cuda:nccl",
    group=OPTION_GROUP,
)
_FINDINGS = Setting(
    *("portable_findings", "fail|warn", "string", "fail", rules.check_member(Severity), ""),
    help="whether findings of --ddp-portable fail a test or are warnings",
    group=OPTION_GROUP,
)
SETTINGS = (_PORTABLE, _FINDINGS)


class PortableOptions(NamedTuple):
    """The options of the command line and the ini file, for the whole session."""

    backend: str
    """The backend for marks without one; empty for none."""
    severity: Severity


MARK_ARGUMENTS = {"portable": MarkArgument(check, "portable='nccl' finds what hangs on NCCL")}
