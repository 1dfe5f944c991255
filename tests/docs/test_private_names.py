"""The private names of the page are there in the installed versions of pytest, torch and Python."""

from __future__ import annotations

import importlib
import inspect
import re
from operator import attrgetter
from pathlib import Path

import pytest

from pytest_ddp.rank.startup import needed_names

PAGE = Path(__file__).parents[2] / "docs" / "private-names.md"
_ROW = re.compile(r"^\| *(?:pytest|torch|Python)? *\| (?P<names>`.*`) \| (?P<without>[^`]+.*) \|$")


def _rows() -> dict[str, str]:
    """What happens without each name, by name."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition("\n## Without them\n")
    rows = [found for line in table.splitlines() if (found := _ROW.match(line))]
    return {name: row["without"] for row in rows for name in re.findall("`(.+?)`", row["names"])}


WITHOUT = _rows()


def _is_there(name: str) -> bool:
    """Whether an object is there, or the code of its class declares or sets such an attribute."""
    module_name, _, path = name.partition(":")
    module = importlib.import_module(module_name)
    if _has(module, path):
        return True
    owner, _, attribute = path.rpartition(".")
    if not owner or not _has(module, owner):
        return False
    source = inspect.getsource(attrgetter(owner)(module))
    setting = re.compile(rf"^\s+(self\.)?{attribute}\s*[:=]", re.MULTILINE)
    return setting.search(source) is not None


def _has(thing: object, path: str) -> bool:
    try:
        attrgetter(path)(thing)
    except AttributeError:
        return False
    return True


@pytest.mark.parametrize("name", WITHOUT)
def test_name_is_there(name: str) -> None:
    assert _is_there(name), f"without it: {WITHOUT[name]}"


@pytest.mark.parametrize("name", ["sys:_no_such_name", "threading:Thread._no_such_name"])
def test_a_name_that_is_gone_is_noticed(name: str) -> None:
    assert not _is_there(name)


def test_an_attribute_that_objects_set_is_found() -> None:
    assert _is_there("_pytest.main:Session._setupstate")


def test_names_that_ranks_need_are_those_that_a_host_looks_for() -> None:
    needed = {name for name, without in WITHOUT.items() if without == "no rank starts"}
    assert needed == set(needed_names.NEEDED)
