"""ddp tests where the plugins of a user's environment are installed, all at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.suite import INNER, LOADFILE, Finished, Suite
from tests.acceptance.verdict import test_smoke

PLACE = Path(__file__).parents[3] / "build" / "zoo" / "site-packages"
PLUGINS = [
    line.partition("==")[0]
    for line in Path(__file__).with_name("zoo.txt").read_text().splitlines()
    if line.startswith(("pytest-", "anyio", "syrupy"))
]


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """Fail where there is nothing to test with."""
    assert PLACE.is_dir(), "make zoo installs the plugins"


def _run(suite: Suite, *args: str, **env: str) -> Finished:
    path = os.pathsep.join(map(str, (INNER, PLACE)))
    return suite.run(*LOADFILE, *args, timeout=120, env=env | {"PYTHONPATH": path})


@pytest.fixture(scope="module")
def smoke(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    test_smoke.write(suite)
    return _run(suite, "-rA", test_smoke.SIZE)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_plugin_is_loaded(smoke: Finished, plugin: str) -> None:
    assert f"{plugin.removeprefix('pytest-')}-" in smoke.flat


@pytest.mark.parametrize("name", test_smoke.EXPECTED)
def test_verdict_is_the_same(smoke: Finished, name: str) -> None:
    test_smoke.test_verdict(smoke, name)


def test_nothing_is_warned_of(smoke: Finished) -> None:
    assert [text for text in smoke.warnings if "plugin" in text] == []


# ---------------------------------------------------------------- pytest-rerunfailures

RERUNS = """
    from pathlib import Path

    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)

    @pytest.fixture
    def first(ddp, request):
        file = Path(__file__).with_name(f"{request.node.name}.seen")
        seen = ddp.gather(file.exists())
        file.touch()
        return not any(seen)

    def test_fails_once(ddp, first):
        assert not (first and ddp.rank), "once"

    def test_collective(ddp, first):
        if first and ddp.rank:
            raise OSError("once")
        dist.barrier()

    @pytest.mark.flaky(reruns=2, condition=False)
    def test_condition(first):
        assert not first, "once"

    @pytest.mark.flaky(reruns=2, only_rerun=[OSError])
    def test_only(first):
        if first:
            raise FileNotFoundError("once")

    @pytest.mark.flaky(reruns=2, rerun_except="Deadlock: rank 1 waits")
    def test_except(ddp, first):
        if first and ddp.rank:
            dist.barrier()

    def test_fails():
        raise ValueError("always")
"""


def test_reruns_are_of_the_whole_test(suite: Suite) -> None:
    suite.write("test_suite.py", RERUNS)
    finished = _run(suite, "--reruns", "1", "--reruns-delay", "0.1")
    finished.assert_outcomes(passed=3, failed=3, rerun=4)
    failed = {name.rpartition(":")[2] for name in finished.results if _failed(finished, name)}
    assert failed == {"test_condition", "test_except", "test_fails"}
    assert "4 rerun" in finished.stdout


def _failed(finished: Finished, name: str) -> bool:
    return any(report.category == "failed" for report in finished.results[name].reports)


# ---------------------------------------------------------------- pytest-randomly

DRAWS = """
    import random

    import numpy
    import pytest
    import torch

    def draws():
        return random.random(), numpy.random.rand(), torch.rand(1).item()

    @pytest.fixture
    def drawn():
        return draws()

    @pytest.mark.ddp(world_size=2)
    def test_differ(ddp, drawn):
        for mine, theirs in (ddp.gather(drawn), ddp.gather(draws())):
            assert not set(mine) & set(theirs)
        print("drawn", draws())

    @pytest.mark.ddp(world_size=2, seed="same")
    def test_same(ddp, drawn):
        for mine, theirs in (ddp.gather(drawn), ddp.gather(draws())):
            assert mine == theirs
"""


def test_randomly_seeds_ranks_apart_and_from_run_to_run_alike(suite: Suite) -> None:
    suite.write("test_suite.py", DRAWS)
    texts = []
    for _ in range(2):
        finished = _run(suite, "-rA", "--randomly-seed=7")
        finished.assert_outcomes(passed=2)
        lines = finished.stdout.splitlines()
        texts.append(sorted(line for line in lines if line.startswith("drawn")))
    assert len(texts[0]) == 2
    assert texts[0] == texts[1]


# ---------------------------------------------------------------- what is written at the end

WRITTEN = """
    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_on_ranks():
        pass

    def test_benchmark(benchmark):
        benchmark(lambda: None)

    def test_snapshot(snapshot):
        assert [1, 2] == snapshot
"""


def test_files_are_written_by_the_pytest_process(suite: Suite) -> None:
    suite.write("test_suite.py", WRITTEN)
    outputs = ("--json-report", "--html=report.html", "--benchmark-json=bench.json")
    finished = _run(suite, *outputs, "--snapshot-update")
    finished.assert_outcomes(passed=3)
    report = json.loads((suite.directory / ".report.json").read_text())
    assert report["summary"]["passed"] == 3
    assert len(json.loads((suite.directory / "bench.json").read_text())["benchmarks"]) == 1
    assert "3 tests took" in (suite.directory / "report.html").read_text()
    assert (suite.directory / "__snapshots__" / "test_suite.ambr").exists()


# ---------------------------------------------------------------- syrupy

SNAPSHOTS = """
    import os

    import pytest
    from syrupy.extensions.json import JSONSnapshotExtension

    VALUE = os.environ.get("VALUE", "1")

    @pytest.mark.ddp(world_size=2)
    def test_on_ranks(snapshot):
        assert ["ranks", VALUE] == snapshot
        assert {"second": VALUE} == snapshot
        assert ["named", VALUE] == snapshot(name="named")

    @pytest.mark.ddp(world_size=2)
    def test_in_json(snapshot):
        assert {"ranks": VALUE} == snapshot.use_extension(JSONSnapshotExtension)

    def test_here(snapshot):
        assert ["here", VALUE] == snapshot
"""

UNLIKE = """
    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_on_ranks(ddp, snapshot):
        assert ["rank", ddp.rank] == snapshot

    def test_here(snapshot):
        assert "here" == snapshot
"""


def test_snapshots_of_ranks_are_those_of_one_test(suite: Suite) -> None:
    suite.write("test_suite.py", SNAPSHOTS)
    first = _run(suite, "--snapshot-update")
    first.assert_outcomes(passed=3)
    assert "5 snapshots generated" in first.stdout
    written = _snapshots(suite)
    assert "ranks" in written["test_suite.ambr"]

    second = _run(suite)
    second.assert_outcomes(passed=3)
    assert second.returncode == 0
    assert "5 snapshots passed" in second.stdout

    changed = _run(suite, VALUE="2")
    changed.assert_outcomes(failed=3)
    assert _snapshots(suite) == written

    updated = _run(suite, "--snapshot-update", VALUE="2")
    updated.assert_outcomes(passed=3)
    assert "5 snapshots updated" in updated.stdout
    assert {text.count("2") for text in _snapshots(suite).values()} == {1, 4}
    assert not any("1'" in text or '"1"' in text for text in _snapshots(suite).values())


def test_a_snapshot_on_which_ranks_disagree_is_not_written(suite: Suite) -> None:
    suite.write("test_suite.py", UNLIKE)
    finished = _run(suite, "--snapshot-update")
    finished.assert_outcomes(passed=1, failed=1)
    assert "ranks 0, 1 have different values for snapshot" in finished["test_on_ranks"].text
    assert "rank" not in _snapshots(suite)["test_suite.ambr"]


def _snapshots(suite: Suite) -> dict[str, str]:
    files = (suite.directory / "__snapshots__").rglob("*.*")
    return {file.name: file.read_text() for file in files}


# ---------------------------------------------------------------- pytest-dependency

DEPENDS = """
    import pytest
    from pytest_dependency import depends

    ddp = pytest.mark.ddp(world_size=2)
    alone = pytest.mark.ddp(world_size=1)

    @pytest.mark.dependency
    def test_here():
        pass

    @pytest.mark.dependency
    def test_fails_here():
        assert False

    @ddp
    @pytest.mark.dependency(depends=["test_here"])
    def test_after_here():
        pass

    @ddp
    @pytest.mark.dependency(depends=["test_fails_here"])
    def test_after_failure_here():
        pass

    @ddp
    @pytest.mark.dependency
    def test_fails_on_ranks(request):
        assert request.config.workerinput is None

    @pytest.mark.dependency(depends=["test_after_here"])
    def test_here_after_ranks():
        pass

    @pytest.mark.dependency(depends=["test_fails_on_ranks"])
    def test_here_after_failure_on_ranks():
        pass

    @alone
    @pytest.mark.dependency(depends=["test_after_here"])
    def test_after_other_ranks():
        pass

    @ddp
    def test_asks_at_run_time(request):
        depends(request, ["test_here", "test_here_after_ranks"])
        depends(request, ["test_after_failure_here"])
"""


def test_dependencies_are_known_everywhere(suite: Suite) -> None:
    suite.write("test_suite.py", DEPENDS)
    finished = _run(suite, "--randomly-dont-reorganize", "-rs")
    finished.assert_outcomes(passed=4, failed=2, skipped=3)
    skipped = ("test_after_failure_here", "test_here_after_failure_on_ranks")
    for name in (*skipped, "test_asks_at_run_time"):
        assert finished[name].verdict == "skipped", name
        assert "depends on" in finished[name].text


# ---------------------------------------------------------------- anyio

ASYNC = """
    import os
    from pathlib import Path

    import anyio
    import pytest

    pytestmark = [pytest.mark.ddp(world_size=2), pytest.mark.anyio]
    SEEN = Path(__file__).with_name("seen")

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(request):
        return request.param

    async def test_threads(ddp):
        assert await anyio.to_thread.run_sync(int, "3") == 3
        (SEEN / str(os.getpid())).mkdir(parents=True, exist_ok=True)

    async def test_after(anyio_backend):
        assert len(list(SEEN.iterdir())) == 2
        assert (SEEN / str(os.getpid())).exists()
"""


def test_threads_that_trio_keeps_replace_no_rank(suite: Suite) -> None:
    suite.write("test_suite.py", ASYNC)
    finished = _run(suite, "--randomly-dont-reorganize")
    finished.assert_outcomes(passed=4)
    assert [text for text in finished.warnings if "thread" in text] == []
