"""Who imports what, and when: own code in each rank, installed packages once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from tests.acceptance.startup.environment_examples import install
from tests.acceptance.startup.import_examples import (
    ASKING,
    BEFORE_ANY_RANK,
    Noted,
    run_noted,
    write_modules,
)
from tests.acceptance.suite import INNER, Suite

BUSY = """
import threading

threading.Thread(target=threading.Event().wait, name="busy", daemon=True).start()
"""
OPTIONS = ("--size=3", "--flavour", "sweet")
GIVEN = ["sweet", "blue", 3]
"""Values of ``--flavour``, of ``--colour`` (in addopts), and of ``--size`` of a plugin."""
OWN_PLUGINS = ("own_plugin", "env_plugin", "listed_plugin")
IMPORTED_BEFORE = {
    "test_second": ["own_second", "test_second"],
    "test_one": ["own_second", "pack.test_one", "test_second"],
    "test_two": ["own_second", "pack.test_one", "pack.test_two", "test_second"],
}
"""Test modules and their packages that a rank has imported when a test begins, which are
those of the files before it and of its own; test_first comes last."""


@pytest.fixture(scope="module")
def written(new_suite: Callable[[], Suite]) -> tuple[Suite, dict[str, str]]:
    suite = new_suite()
    return suite, write_modules(suite)


@pytest.fixture(scope="module")
def noted(written: tuple[Suite, dict[str, str]]) -> Noted:
    return run_noted(*written, *OPTIONS)


def test_all_pass_on_forked_ranks(noted: Noted) -> None:
    noted.finished.assert_outcomes(passed=5)
    assert "ranks are spawned" not in noted.finished.output


@pytest.mark.parametrize(
    "module",
    [
        *("test_first", "own_first", "test_second", "own_second", "pack.conftest"),
        *("pack.test_one", "pack.test_two", *OWN_PLUGINS),
    ],
)
def test_own_code_is_imported_by_each_rank_and_the_controller_alone(
    noted: Noted, module: str
) -> None:
    processes = (noted.controller, *noted.ranks.values())
    assert noted.importers(module) == Counter(processes)


def test_both_conftests_are_imported_by_each_rank_and_the_controller_alone(noted: Noted) -> None:
    processes = (noted.controller, *noted.ranks.values())
    assert noted.importers("conftest") == Counter(processes * 2)


@pytest.mark.parametrize("module", ["test_plain", "own_plain", "needed_by_plain_tests"])
def test_neither_host_nor_rank_imports_what_plain_tests_need(noted: Noted, module: str) -> None:
    assert noted.importers(module) == Counter([noted.controller])


@pytest.mark.parametrize("test", IMPORTED_BEFORE)
def test_a_rank_imports_a_file_when_its_test_comes(noted: Noted, test: str) -> None:
    for _, facts in noted.facts(test):
        assert facts["imported"] == IMPORTED_BEFORE[test]


@pytest.mark.parametrize("package", ASKING)
def test_installed_packages_that_depend_on_the_rank_see_it(noted: Noted, package: str) -> None:
    for rank, facts in noted.facts("test_first"):
        assert facts["asking"][package] == rank


@pytest.mark.parametrize("plugin", BEFORE_ANY_RANK)
def test_installed_plugins_are_loaded_before_any_rank_is_known(noted: Noted, plugin: str) -> None:
    """pytest loads and configures these plugins once, in the host: see docs/how-it-runs.md."""
    assert {facts["asking"][plugin] for _, facts in noted.facts("test_first")} == {None}


def test_a_plugin_that_starts_a_thread_is_named_by_it(suite: Suite) -> None:
    """A process with threads must not be forked, and ranks need the plugin as everybody does."""
    site = suite.directory.parent / f"{suite.directory.name}-outside" / "site-packages"
    install(site, "busy", BUSY, entry_point="pytest11")
    suite.write("test_it.py", "import pytest\n@pytest.mark.ddp\ndef test_it(ddp): pass\n")
    path = os.pathsep.join(map(str, (INNER, site)))
    finished = suite.run(env={"PYTHONPATH": path}, extra=(), timeout=90)
    finished.assert_outcomes(passed=1)
    (warning,) = (text for text in finished.warnings if "ranks are spawned" in text)
    assert "threads run in their host (busy)" in warning


@pytest.mark.parametrize("package", ["reading", "relying", "threaded"])
def test_installed_packages_that_cannot_be_shared_are_imported_by_each_rank(
    noted: Noted, package: str
) -> None:
    importers = noted.importers(package)
    assert all(importers[pid] == 1 for pid in noted.ranks.values())


def test_a_thread_of_an_installed_package_is_in_each_rank(noted: Noted) -> None:
    assert [facts["thread"] for _, facts in noted.facts("test_first")] == [True, True]


def test_an_unrelated_installed_package_is_imported_once_for_all_ranks(noted: Noted) -> None:
    first = {facts["unrelated"] for _, facts in noted.facts("test_first")}
    second = {facts["unrelated"] for _, facts in noted.facts("test_second")}
    (host,) = first | second
    assert host not in (noted.controller, *noted.ranks.values())
    assert noted.importers("unrelated").keys().isdisjoint(noted.ranks.values())


def test_an_installed_package_that_is_imported_by_name_is_shared_as_well(noted: Noted) -> None:
    hosts = noted.importers("needed_by_name").keys() - {noted.controller}
    assert hosts
    assert hosts.isdisjoint(noted.ranks.values())


@pytest.mark.parametrize("test", ["test_first", "test_second", "test_one"])
def test_a_test_finds_the_options_of_own_plugins(noted: Noted, test: str) -> None:
    for rank, facts in noted.facts(test):
        assert facts["at import"] == rank
        assert facts["options"] == GIVEN
        assert facts["shape"] == "square"


def test_hooks_of_own_plugins_run_once_in_each_rank_as_in_the_controller(noted: Noted) -> None:
    def hooks(pid: int, rank: str) -> list[tuple[str, str, str]]:
        shown = ((note.name, *note.words) for note in noted.of(pid, "hook"))
        return [(name, hook, words.replace(f"{rank} ", "", 1)) for name, hook, words in shown]

    expected = hooks(noted.controller, "None")
    assert Counter((name, hook) for name, hook, _ in expected) == Counter(
        (name, hook)
        for name in ("conftest", *OWN_PLUGINS)
        for hook in ("configure", "sessionstart")
    )
    assert {words for *_, words in expected} == {"sweet blue 3"}
    for rank, pid in noted.ranks.items():
        assert all(note.words[1].startswith(f"{rank} ") for note in noted.of(pid, "hook"))
        assert hooks(pid, rank) == expected


def test_fixtures_of_own_plugins_are_there(noted: Noted) -> None:
    for rank, facts in noted.facts("test_first"):
        assert facts["plugins"] == [noted.ranks[rank]] * 4


def test_fixtures_of_a_conftest_in_a_folder_are_there(noted: Noted) -> None:
    for rank, facts in noted.facts("test_second"):
        assert facts["folder"] == rank


def test_a_fixture_of_a_package_is_set_up_once_for_its_files(noted: Noted) -> None:
    for pid in noted.ranks.values():
        assert [note.name for note in noted.of(pid, "crate")] == ["up", "down"]
    for test in ("test_one", "test_two"):
        assert [facts["crate"] for _, facts in noted.facts(test)] == [0, 0]


def test_import_in_the_host_knows_no_rank(written: tuple[Suite, dict[str, str]]) -> None:
    noted = run_noted(*written, *OPTIONS, "--ddp-import=host", "other", "pack")
    noted.finished.assert_outcomes(passed=3)
    for test in IMPORTED_BEFORE:
        for _, facts in noted.facts(test):
            assert facts["at import"] is None
            assert facts["options"] == GIVEN
    assert noted.importers("own_second").keys().isdisjoint(noted.ranks.values())
