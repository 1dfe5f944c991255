"""Fixtures of ``--junitxml`` in a rank, whose pytest writes no XML file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from _pytest.junitxml import _check_record_param_type, xml_key

from pytest_ddp.rank.birth.session import JUNIT_FAMILY
from pytest_ddp.wire.protocol import XmlNoted

_Send = Callable[[XmlNoted], None]


def stand_in(config: pytest.Config, send: _Send) -> None:
    """Make pytest's fixtures warn as in a process that writes the file, and send their values."""
    family = config.stash[JUNIT_FAMILY]
    if family is not None:
        xml: Any = _Xml(family, send)
        config.stash[xml_key] = xml
        # Registered, as pytest unregisters it at the end of its session.
        config.pluginmanager.register(xml)


class _Xml:
    def __init__(self, family: str, send: _Send) -> None:
        self.family = family
        self._send = send

    def add_global_property(self, name: str, value: object) -> None:
        __tracebackhide__ = True
        _check_record_param_type("name", name)
        self._send(XmlNoted(None, name, str(value)))

    def node_reporter(self, nodeid: object) -> _NodeReporter:
        return _NodeReporter(str(nodeid), self._send)


class _NodeReporter:
    def __init__(self, nodeid: str, send: _Send) -> None:
        self._nodeid = nodeid
        self._send = send

    def add_attribute(self, name: str, value: object) -> None:
        self._send(XmlNoted(self._nodeid, str(name), str(value)))
