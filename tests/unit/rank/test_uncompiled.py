"""Code of the plugin that the compiler is to leave alone, and how often that is asked for."""

from __future__ import annotations

import sys
from types import CodeType, SimpleNamespace

import pytest

from pytest_ddp.rank import link
from pytest_ddp.rank.status import uncompiled


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> list[CodeType]:
    """What has been marked, of which nothing was."""
    codes: list[CodeType] = []
    monkeypatch.setattr(uncompiled, "_hidden", set())
    compiler = SimpleNamespace(skip_code=codes.append)
    monkeypatch.setitem(sys.modules, "torch._dynamo.eval_frame", compiler)
    return codes


def test_functions_methods_properties_and_what_is_defined_in_them(marked: list[CodeType]) -> None:
    uncompiled.hide_own_frames_now()
    names = {code.co_qualname for code in marked if code.co_filename == link.__file__}
    assert {"Link.__init__", "Link.send"} <= names
    everywhere = {code.co_qualname for code in marked}
    assert any("<locals>" in name for name in everywhere)
    assert "Ddp.device" in everywhere


def test_nothing_is_marked_that_is_not_ours(marked: list[CodeType]) -> None:
    uncompiled.hide_own_frames_now()
    folder = uncompiled._FOLDER
    assert all(code.co_filename.startswith((folder, "<")) for code in marked)


def test_a_module_is_marked_once_for_a_host_and_all_its_ranks(
    marked: list[CodeType], monkeypatch: pytest.MonkeyPatch
) -> None:
    uncompiled.hide_own_frames_now()
    before = len(marked)
    monkeypatch.setattr(uncompiled, "_hidden", uncompiled._hidden - {link.__name__})
    uncompiled.hide_own_frames_now()
    assert {code.co_filename for code in marked[before:]} == {link.__file__}


def test_without_a_compiler_there_is_nothing_to_do(
    marked: list[CodeType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.eval_frame")
    uncompiled.hide_own_frames_now()
    assert marked == []
