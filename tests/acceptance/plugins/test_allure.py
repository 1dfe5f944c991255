"""allure-pytest's result files, with the real plugin."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.plugins.test_zoo import PLACE
from tests.acceptance.suite import INNER, LOADFILE, Suite

SOURCE = """
    import os
    import signal

    import allure
    import pytest
    import torch.distributed as dist

    ddp = pytest.mark.ddp(world_size=2)

    @pytest.fixture
    def prepared():
        with allure.step("prepares"):
            yield

    def test_plain(prepared):
        with allure.step("plain"):
            allure.attach("words", name="plain")

    @ddp
    @allure.title("a title")
    @allure.feature("a feature")
    def test_passes(ddp, prepared):
        with allure.step("works"):
            allure.attach(f"words of {ddp.rank}", name="words")
        allure.dynamic.severity("critical")

    @pytest.mark.ddp(world_size=1)
    def test_one_rank():
        with allure.step("works alone"):
            pass

    @ddp
    @pytest.mark.parametrize("number", [1, 2])
    def test_fails_on_one(ddp, number):
        with allure.step("fails"):
            assert ddp.rank == 0, "on one"

    @ddp
    def test_skips():
        pytest.skip("not here")

    @ddp
    @pytest.mark.xfail(reason="a bug")
    def test_xfails():
        raise ValueError

    @ddp
    def test_deadlock(ddp):
        if ddp.rank == 0:
            dist.barrier()

    @ddp
    @allure.feature("a feature")
    def test_all_die(ddp):
        allure.attach("last words", name="lost")
        os.kill(os.getpid(), signal.SIGKILL)

    @ddp
    def test_flaky(request, ddp):
        file = request.path.with_name("seen")
        seen = ddp.broadcast(file.exists())
        file.touch()
        with allure.step("again" if seen else "once"):
            if not seen:
                raise OSError
"""
STATUSES = {
    "test_plain": "passed",
    "a title": "passed",
    "test_one_rank": "passed",
    "test_fails_on_one[1]": "failed",
    "test_fails_on_one[2]": "failed",
    "test_skips": "skipped",
    "test_xfails": "skipped",
    "test_deadlock": "broken",
    "test_all_die": "broken",
}

Item = dict[str, Any]


@pytest.fixture(scope="module")
def folder(new_suite: Callable[[], Suite]) -> Path:
    suite = new_suite()
    suite.write("test_suite.py", SOURCE)
    (suite.directory / "out").mkdir()
    (suite.directory / "out" / "old-result.json").write_text("{}")
    path = os.pathsep.join(map(str, (INNER, PLACE)))
    names = ("xdist", "allure_pytest.plugin", "rerunfailures", "ddp")
    plugins = [word for name in names for word in ("-p", name)]
    out = ("--alluredir=out", "--clean-alluredir", "--reruns=1", "--only-rerun=OSError")
    env = {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    suite.run(*LOADFILE, *plugins, *out, timeout=120, env=env)
    return suite.directory / "out"


def _read(folder: Path, kind: str) -> list[Item]:
    return [json.loads(file.read_text()) for file in folder.glob(f"*-{kind}.json")]


def _result(folder: Path, name: str) -> Item:
    (found,) = [one for one in _read(folder, "result") if one["name"] == name]
    return found


def _attached(item: Item) -> Iterator[str]:
    yield from (one["source"] for one in item.get("attachments", ()))
    for step in item.get("steps", ()):
        yield from _attached(step)


def test_each_test_has_one_result_that_is_its_verdict(folder: Path) -> None:
    results = [one for one in _read(folder, "result") if one["name"] != "test_flaky"]
    assert sorted(one["name"] for one in results) == sorted(STATUSES)
    assert {one["name"]: one["status"] for one in results} == STATUSES
    assert len({one["historyId"] for one in results}) == len(results)


def test_steps_are_shown_by_rank(folder: Path) -> None:
    steps = _result(folder, "a title")["steps"]
    assert [step["name"] for step in steps] == ["rank 0", "rank 1"]
    assert [one["name"] for step in steps for one in step["steps"]] == ["works", "works"]
    failed = _result(folder, "test_fails_on_one[1]")
    assert [step["status"] for step in failed["steps"]] == ["passed", "failed"]
    assert failed["statusDetails"]["message"].startswith("rank 1: AssertionError: on one")
    assert "rank 1 of 2 failed in call" in failed["statusDetails"]["trace"]
    alone = _result(folder, "test_one_rank")
    assert [step["name"] for step in alone["steps"]] == ["works alone"]


def test_a_test_is_described_as_by_the_plugin(folder: Path) -> None:
    labels = {one["name"]: one["value"] for one in _result(folder, "a title")["labels"]}
    plain = {one["name"] for one in _result(folder, "test_plain")["labels"]}
    assert labels.keys() == plain | {"feature", "severity"}
    assert labels["severity"] == "critical"
    assert _result(folder, "test_fails_on_one[2]")["parameters"] == [
        {"name": "number", "value": "2"}
    ]
    dead = _result(folder, "test_all_die")
    assert {one["name"] for one in dead["labels"]} == plain | {"feature"}
    assert dead["fullName"] == "test_suite#test_all_die"


def test_what_became_of_others(folder: Path) -> None:
    shown = {
        one["name"]: one["statusDetails"]
        for one in _read(folder, "result")
        if "statusDetails" in one
    }
    words = {name: details["message"] for name, details in shown.items()}
    assert words["test_skips"] == "Skipped: not here"
    assert words["test_xfails"].startswith("XFAIL a bug")
    assert words["test_deadlock"].startswith("deadlock: rank 0 waits in barrier")
    assert words["test_all_die"].startswith("ranks 0-1 died of SIGKILL")


def test_each_attempt_is_a_result_of_one_history(folder: Path) -> None:
    attempts = [one for one in _read(folder, "result") if one["name"] == "test_flaky"]
    attempts.sort(key=lambda one: one["start"])
    assert [one["status"] for one in attempts] == ["broken", "passed"]
    assert len({one["historyId"] for one in attempts}) == 1
    assert [one["steps"][0]["steps"][0]["name"] for one in attempts] == ["once", "again"]


def test_attachments_are_there_and_no_others(folder: Path) -> None:
    named = [source for one in _read(folder, "result") for source in _attached(one)]
    there = [file.name for file in folder.glob("*-attachment*")]
    assert sorted(named) == sorted(there)
    texts = {(folder / name).read_text() for name in named}
    assert texts >= {"words", "words of 0", "words of 1"}


def test_fixtures_are_those_of_one_rank_and_name_their_tests(folder: Path) -> None:
    uuids = {one["uuid"]: one["name"] for one in _read(folder, "result")}
    tests = [
        uuids[child]
        for one in _read(folder, "container")
        for child in one.get("children", ())
        if one["befores"][0]["name"] == "prepared"
    ]
    assert sorted(tests) == ["a title", "test_plain"]


def test_nothing_else_is_left(folder: Path) -> None:
    kinds = ("-result.json", "-container.json", "-attachment")
    assert [file.name for file in folder.iterdir() if not any(k in file.name for k in kinds)] == []
    assert not (folder / "old-result.json").exists()
