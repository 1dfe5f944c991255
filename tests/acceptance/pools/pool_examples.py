"""Inner tests whose ranks log when their wide fixtures go up and down.

Data for ``test_pools.py``.
"""

from __future__ import annotations

WIDE = """
    import json
    import os

    import pytest
    import torch
    import torch.distributed as dist

    def note(event, what, *more):
        line = json.dumps([event, what, os.getpid(), *more])
        # Short enough to be written whole, whoever else writes.
        with open(os.environ["LOG"], "a") as stream:
            stream.write(line + "\\n")

    def together():
        if dist.is_initialized():
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == int(os.environ["WORLD_SIZE"])

    def wide(scope):
        @pytest.fixture(scope=scope, autouse=True)
        def fixture(request):
            together()
            note("up", f"{scope} {request.node.nodeid}")
            yield
            together()
            note("down", f"{scope} {request.node.nodeid}")

        return fixture

    def needed(item):
        \"\"\"The wide fixtures of a test, by scope and node.\"\"\"
        package = item.getparent(pytest.Package)
        yield "class", item.getparent(pytest.Class) or item
        yield "module", item.getparent(pytest.Module)
        yield "session", item.session
        if package is not None:
            yield "package", package
"""

CONFTEST = """
    import os

    import pytest
    from wide import needed, note, wide

    of_class, of_module, of_session = map(wide, ("class", "module", "session"))

    @pytest.fixture(autouse=True)
    def ran(request, ddp):
        peers = ddp.gather(os.getpid())
        nodes = [f"{scope} {node.nodeid}" for scope, node in needed(request.node)]
        note("ran", request.node.nodeid.rpartition("::")[2], peers, nodes)
"""

PACKAGE = "from wide import wide\n\nof_package = wide('package')\n"

PREAMBLE = """
    import os
    import signal
    import time
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist
    from wide import note

    def on(size, **more):
        return pytest.mark.ddp(world_size=size, **more)

    def turns(*sizes):
        marked = [pytest.param(turn, marks=on(size)) for turn, size in enumerate(sizes)]
        return pytest.mark.parametrize("turn", marked)
"""

SINGLETON = """
    AT_IMPORT = int(os.environ.get("WORLD_SIZE", "0"))

    class State:
        kept = None

        @classmethod
        def size(cls):
            if cls.kept is None:
                cls.kept = int(os.environ["WORLD_SIZE"])
            return cls.kept

    @turns(1, 2, 4, 2, 1, 3)
    def test_state(ddp, turn):
        assert State.size() == AT_IMPORT == ddp.world_size == dist.get_world_size()
"""

ENV = """
    @on(2, env={"SETTING": "1"})
    def test_with_setting(ddp):
        assert os.environ["SETTING"] == "1"

    @on(2)
    def test_without_setting(ddp):
        assert "SETTING" not in os.environ

    @on(2, env={"SETTING": "2"})
    def test_other_setting(ddp):
        assert os.environ["SETTING"] == "2"
"""

NO_GROUP = """
    GROUP = []

    @pytest.mark.parametrize(
        "turn",
        [pytest.param(turn, marks=on(2, init=turn % 2 == 1)) for turn in range(6)],
    )
    def test_group(ddp, turn):
        assert dist.is_initialized() == (turn % 2 == 1)
        GROUP.append(turn)
        assert len(GROUP) == 1 + turn // 2
"""

CRASH = """
    @turns(2, 3)
    def test_before(ddp, turn):
        pass

    @on(2)
    def test_crash(ddp):
        if ddp.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    @turns(2, 3)
    def test_after(ddp, turn):
        dist.all_reduce(torch.ones(1))
"""

BOUNDED = """
    def living():
        host = os.getppid()
        return list(map(int, Path(f"/proc/{host}/task/{host}/children").read_text().split()))

    @turns(*range(1, 9))
    def test_first(ddp, turn):
        ddp.barrier()
        if ddp.rank == 0:
            note("living", f"test_first[{turn}]", living())

    @turns(1, 2)
    def test_second(ddp, turn):
        dist.all_reduce(torch.ones(1))
"""

FIRST = """
    from wide import note

    class TestA:
        @turns(2, 3, 2)
        def test_a(self, ddp, turn):
            pass

    class TestB:
        @turns(2, 1)
        def test_b(self, ddp, turn):
            if os.environ.get("FAIL") and turn == 0:
                pytest.fail("as it is asked to")

    @turns(2, 3)
    def test_alone(ddp, turn):
        pass
"""

SECOND = """
    class TestC:
        @turns(3, 3)
        def test_c(self, ddp, turn):
            if os.environ.get("FAIL") and turn == 1:
                pytest.fail("as it is asked to")

    @on(3, isolate=True)
    def test_fresh(ddp):
        pass

    @turns(3, 2)
    def test_after_fresh(ddp, turn):
        pass
"""

THIRD = """
    @turns(2, 2)
    def test_last(ddp, turn):
        pass
"""

INTERRUPTED = """
    class TestA:
        @turns(3, 2)
        def test_before(self, ddp, turn):
            pass

        @on(2)
        def test_it(self, ddp):
            DEED

    @turns(2, 3)
    def test_never(ddp, turn):
        pass
"""
