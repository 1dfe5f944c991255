"""The options of this extension, checked."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pytest

from pytest_ddp.settings import rules
from pytest_ddp.settings.options import INI_ONLY, Setting


class Adopt(enum.StrEnum):
    """Which parts of other harnesses the plugin takes over."""

    TESTCASE = "testcase"
    """Tests of torch's classes become ddp tests."""
    SPAWN = "spawn"
    """Processes that tests spawn become forks of a process that has imported torch."""


class Exits(enum.StrEnum):
    """Whether the plugin or only multiprocessing checks how a served process ended."""

    CHECKED = "checked"
    PLAIN = "plain"


_ADOPT = Setting(
    *("adopt", "LIST", "string", "", rules.check_members(Adopt), ""),
    help="take over from other harnesses: testcase (torch's MultiProcessTestCase and "
    "MultiProcContinuousTest become ddp tests), spawn (torch.multiprocessing.spawn and "
    "similar functions fork from a process with torch), or all",
)
_EXITS = Setting(
    *("adopt_exits", "checked|plain", "string", "checked", rules.check_member(Exits), ""),
    group=INI_ONLY,
    help="with --ddp-adopt=spawn: fail a test that does not notice that one of its processes "
    "died, failed or exited early, or leave it to multiprocessing",
)
EVERYWHERE = Setting(
    *("everywhere", "N", "string", "", rules.check_local_size_or_none, rules.LOCAL_SIZE),
    help="run every test that has no ddp mark on N ranks, as torchrun -m pytest would",
)
SETTINGS = (_ADOPT, _EXITS, EVERYWHERE)


@dataclass(frozen=True, slots=True)
class AdoptOptions:
    """The options of the command line and the ini file, for the whole session."""

    adopt: frozenset[Adopt]
    """Harnesses that are taken over."""
    checks_exits: bool
    """Whether a test fails that does not notice how one of its processes ended."""
    everywhere: int | None
    """World size of tests that have no mark; None to leave them to the pytest process."""

    @classmethod
    def of(cls, config: pytest.Config) -> AdoptOptions:
        """Read the options of the command line and the ini file.

        Raises:
            pytest.UsageError: a value is not allowed.
        """
        adopt, exits, everywhere = (setting.read(config, config.option) for setting in SETTINGS)
        return cls(adopt, exits is Exits.CHECKED, everywhere)
