"""A test that has passed everywhere is followed at once, while pytest still reports it.

Whether the next one had begun is seen by a plugin that holds up the report of each test's teardown.
"""

from __future__ import annotations

import json
import re
import signal
import time

import pytest

from tests.acceptance.suite import SPAWNED, UNDER_XDIST, ZOO, Suite, flat

pytestmark = pytest.mark.skipif(
    UNDER_XDIST or SPAWNED or bool(ZOO), reason="xdist's workers and unknown plugins wait"
)

LIMIT = 60.0
CONFTEST = """
    import json
    import os
    import time
    from pathlib import Path

    import pytest

    class Holder:
        ddp_only_listens = {listens}

        def pytest_runtest_logreport(self, report):
            if report.when != "teardown":
                return
            name = report.nodeid.rpartition("::")[2]
            end = time.monotonic() + (30 if name.endswith("_followed") else {hold})
            while time.monotonic() < end and not Path("begun-" + name + "_next-0").exists():
                time.sleep(0.01)
            begun = sorted(file.name[6:-2] for file in Path().glob("begun-*-0"))
            with open("seen", "a") as stream:
                stream.write(json.dumps([name, begun]) + chr(10))
            {then}

    def pytest_configure(config):
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Holder())

    @pytest.fixture(autouse=True)
    def told(request, ddp):
        Path(f"begun-{{request.node.name}}-{{ddp.rank}}").touch()
"""
IMPORTS = """
    import ctypes
    import os
    import signal
    import threading
    import time
    import warnings
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)
"""
FOLLOWED = """
    def test_plain_followed(ddp):
        dist.all_reduce(torch.ones(1))

    def test_plain_followed_next(ddp):
        print("printed by the next")
        assert ddp.gather(ddp.rank) == [0, 1]

    def test_printing_followed(ddp):
        print("printed by rank", ddp.rank)

    def test_printing_followed_next(ddp):
        pass

    @pytest.fixture(scope="module")
    def wide(ddp):
        yield
        Path(f"closed-{ddp.rank}").touch()

    def test_wide_followed(ddp, wide):
        pass

    def test_wide_followed_next(ddp, wide):
        pass
"""
OTHER_FILE = """
    def test_of_another_file(ddp):
        assert ddp.gather(Path(f"closed-{ddp.rank}").exists()) == [True, True]

    def test_dies_followed(ddp):
        pass

    def test_dies_followed_next(ddp):
        if ddp.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    def test_after_death(ddp):
        dist.barrier()
"""
ALONE = {
    "failing_on_one": ("assert ddp.rank == 0", "failed"),
    "failing_in_teardown": ("request.addfinalizer(lambda: 1 // (1 - ddp.rank))", "passed+error"),
    "skipped": ("pytest.skip('not here')", "skipped"),
    "expected": ("pytest.xfail('not yet')", "xfailed"),
    "leaving_a_thread": (
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "passed",
    ),
    "changing": ("os.environ['STRAY'] = '1'", "passed"),
    "unlike": (
        "dist.all_reduce(torch.ones(1), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][ddp.rank])",
        "failed",
    ),
    "uneven": ("dist.broadcast(torch.ones(1), src=0) if ddp.rank == 0 else None", "failed"),
    "destroying": ("dist.destroy_process_group()", "passed"),
    "dying": ("ddp.rank == 1 and os.kill(os.getpid(), signal.SIGKILL)", "failed"),
    "leaving": ("ddp.rank == 1 and os._exit(0)", "failed"),
}
"""Name: what a test does that the next one has to wait for, and its verdict."""
APART = """
    def test_before_an_isolated(ddp):
        pass

    @pytest.mark.ddp(isolate=True)
    def test_isolated(ddp):
        pass

    def test_before_a_smaller(ddp):
        pass

    @pytest.mark.ddp(world_size=1)
    def test_smaller(ddp):
        pass
"""


def _write(suite: Suite, *, listens: bool = True, hold: float = 0.3, then: str = "") -> None:
    suite.write("conftest.py", CONFTEST.format(listens=listens, hold=hold, then=then or "pass"))


def _begun(suite: Suite) -> dict[str, list[str]]:
    """Which tests had begun when each was reported."""
    lines = (suite.directory / "seen").read_text().splitlines()
    return dict(map(json.loads, lines))


# ---------------------------------------------------------------- followed at once


def test_followed(suite: Suite) -> None:
    _write(suite, hold=0)
    suite.write("test_followed.py", IMPORTS + FOLLOWED)
    suite.write("test_other.py", IMPORTS + OTHER_FILE)
    finished = suite.run("-v", timeout=120)
    finished.assert_outcomes(passed=9, failed=1)
    begun = _begun(suite)
    for name in re.findall(r"(test_\w+_followed)\(", FOLLOWED + OTHER_FILE):
        assert f"{name}_next" in begun[name], begun
    dead = finished["test_dies_followed_next"]
    assert "rank 1 died of SIGKILL" in flat(dead.text), dead.text
    said = finished["test_plain_followed_next"].sections
    assert list(finished["test_plain_followed"].sections) == []
    assert all("printed by the next" in text for text in said.values()), said
    assert all(r.phase("call").duration < 5 for r in finished.results.values())


def test_text_comes_in_order(suite: Suite) -> None:
    _write(suite, hold=0)
    suite.write("test_followed.py", IMPORTS + FOLLOWED)
    finished = suite.run("-sv", "-k", "plain")
    finished.assert_outcomes(passed=2)
    first, second = finished.stdout.index("PASSED"), finished.stdout.index("printed by the next")
    assert first < second, finished.stdout


def test_time_begins_with_its_turn(suite: Suite) -> None:
    _write(suite, hold=3)
    suite.write(
        "test_turn.py",
        IMPORTS
        + """
    def test_first(ddp):
        pass

    @pytest.mark.ddp(timeout=2)
    def test_second(ddp):
        ddp.barrier()
    """,
    )
    suite.run().assert_outcomes(passed=2)
    assert "test_second" in _begun(suite)["test_first"]


def test_directory_of_the_next_stays(suite: Suite) -> None:
    """Tests of one name have one directory, where the first has made none."""
    _write(suite, hold=0)
    wants = "test_one_name(ddp, tmp_path):\n        (tmp_path / 'x').touch(); time.sleep(0.5)\n"
    first = "    def test_one_name(ddp): pass\n"
    suite.write("test_first.py", IMPORTS + first)
    suite.write("test_second.py", f"{IMPORTS}    def {wants}        assert [*tmp_path.iterdir()]\n")
    suite.run("-o", "tmp_path_retention_policy=none").assert_outcomes(passed=2)


# ---------------------------------------------------------------- not before its report


def test_alone(suite: Suite) -> None:
    _write(suite)
    tests = "".join(
        f"""
    def test_{name}(ddp, request):
        {deed}

    def test_{name}_next(ddp):
        dist.barrier()
    """
        for name, (deed, _) in ALONE.items()
    )
    suite.write("test_alone.py", IMPORTS + tests + APART)
    finished = suite.run(timeout=120)
    begun = _begun(suite)
    for name, (_, verdict) in ALONE.items():
        assert finished[f"test_{name}"].verdict == verdict, finished.tail()
        assert f"test_{name}_next" not in begun[f"test_{name}"], name
        assert finished[f"test_{name}_next"].verdict == "passed", finished.tail()
    for name in ("an_isolated", "a_smaller"):
        assert f"test_{name.partition('_')[2]}" not in begun[f"test_before_{name}"]


def test_plugins_that_may_act_come_first(suite: Suite) -> None:
    _write(suite, listens=False)
    suite.write("test_followed.py", IMPORTS + FOLLOWED.replace("_followed", "_not"))
    suite.run("-k", "plain").assert_outcomes(passed=2)
    assert _begun(suite)["test_plain_not"] == ["test_plain_not"]


def test_first_failure_ends_the_session(suite: Suite) -> None:
    _write(suite)
    suite.write("test_end.py", IMPORTS + "    def test_a(ddp): assert 0\n    def test_b(ddp): pass")
    finished = suite.run("-x")
    finished.assert_outcomes(failed=1)
    assert not (suite.directory / "begun-test_b-0").exists()


# ---------------------------------------------------------------- its turn does not come

SLOW = """
    @pytest.fixture(scope="session")
    def wide(ddp):
        yield
        Path(f"closed-{ddp.rank}").touch()

    def test_slow_followed(ddp, wide):
        pass

    def test_slow_followed_next(ddp, wide):
        Path(f"pid-{ddp.rank}").write_text(str(os.getpid()))
        time.sleep(600)
"""


@pytest.mark.parametrize(
    ("then", "code", "word"),
    [
        ("raise RuntimeError('in a report')", 3, "in a report"),
        ("pytest.exit('enough', 7)", 7, "enough"),
        ("os.kill(os.getpid(), 2)", 2, "KeyboardInterrupt"),
    ],
)
def test_session_ends_in_between(suite: Suite, then: str, code: int, word: str) -> None:
    _write(suite, then=then)
    suite.write("test_slow.py", IMPORTS + SLOW)
    finished = suite.run()
    assert finished.returncode == code, finished.tail()
    assert word in finished.output
    assert "test_slow_followed_next" not in finished
    assert finished["test_slow_followed"].phase("call").outcome == "passed"
    assert finished.duration < LIMIT, finished.tail()
    for rank in range(2):
        assert (suite.directory / f"closed-{rank}").exists(), finished.tail()


def test_ctrl_c_in_between(suite: Suite) -> None:
    _write(suite, then="time.sleep(600)")
    suite.write("test_slow.py", IMPORTS + SLOW)
    running = suite.start()
    deadline = time.monotonic() + LIMIT
    while not (suite.directory / "seen").exists():
        assert time.monotonic() < deadline, running.stdout
        time.sleep(0.05)
    running.process.send_signal(signal.SIGINT)
    finished = running.finish(LIMIT)
    assert finished.returncode == pytest.ExitCode.INTERRUPTED, finished.tail()
    assert finished["test_slow_followed"].phase("call").outcome == "passed"
    assert "test_slow_followed_next" not in finished


def test_plugin_that_listens_and_acts_all_the_same(suite: Suite) -> None:
    """The order of a session is changed behind our back: what has begun is given up."""
    suite.write(
        "conftest.py",
        """
        import pytest

        ddp_only_listens = True

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(item, nextitem):
            items = item.session.items
            result = yield
            if item.name == "test_a":
                items[1], items[2] = items[2], items[1]
            return result
        """,
    )
    tests = "".join(f"\n    def test_{name}(ddp):\n        dist.barrier()\n" for name in "abc")
    suite.write("test_swapped.py", IMPORTS + tests)
    suite.run().assert_outcomes(passed=3)
