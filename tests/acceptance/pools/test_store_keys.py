"""Keys of the default group's store: a test finds none of the test before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import LOADFILE, Finished, Suite

SOURCE = """
    import datetime

    import pytest
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d
    from torch.distributed.distributed_c10d import _get_default_store

    pytestmark = pytest.mark.ddp(world_size=2)
    SOON = datetime.timedelta(milliseconds=200)
    STORES = {
        "default": _get_default_store,
        "of_group": lambda: c10d._get_process_group_store(dist.group.WORLD),
        "in_group": lambda: dist.group.WORLD.get_group_store(),
    }


    @pytest.mark.parametrize("announces", [True, False])
    @pytest.mark.parametrize("store", STORES)
    def test_handshake(ddp, store, announces):
        if ddp.rank == 0 and announces:
            STORES[store]().set("ready", "1")
        STORES[store]().wait(["ready"], SOON if not announces else datetime.timedelta(seconds=60))


    def lowest(store):
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        return store


    def of_subgroup():
        group = dist.new_group([0, 1])
        below = lowest(c10d._get_process_group_store(group))
        dist.barrier()
        dist.destroy_process_group(group)
        return below


    WAYS = {
        "underlying": lambda: lowest(_get_default_store()),
        "at_once": lambda: _get_default_store()._underlying_non_prefix_store,
        "own_prefix": lambda: lowest(dist.PrefixStore("own", _get_default_store())),
        "clone": lambda: lowest(_get_default_store().clone()),
        "subgroup": of_subgroup,
    }


    @pytest.mark.parametrize("time", ["first", "second"])
    @pytest.mark.parametrize("way", WAYS)
    def test_below(ddp, way, time):
        below = WAYS[way]()
        ddp.barrier()
        assert not below.check(["below"])
        ddp.barrier()
        below.set("below", "1")
        dist.barrier()


    @pytest.mark.parametrize("time", ["first", "second"])
    def test_counter(ddp, time):
        _get_default_store().add("count", 1)
        ddp.barrier()
        assert _get_default_store().add("count", 0) == 2


    @pytest.mark.parametrize("time", ["first", "second"])
    def test_all_ways_lead_to_one_store(ddp, time):
        if ddp.rank == 0:
            _get_default_store().set("way", time)
        assert {store().get("way") for store in STORES.values()} == {time.encode()}


    @pytest.mark.parametrize("time", ["first", "second"])
    def test_group_of_one_name(ddp, time):
        group = dist.new_group([0, 1], use_local_synchronization=True)
        store = c10d._get_process_group_store(group)
        assert not store.check(["own"])
        dist.barrier(group)
        store.set("own", "1")
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)


    @pytest.mark.parametrize("time", ["first", "second"])
    def test_timeout(ddp, time):
        assert _get_default_store().timeout > SOON
        _get_default_store().set_timeout(SOON)
        dist.barrier()
        assert _get_default_store().timeout == SOON
"""

WAYS = ("underlying", "at_once", "own_prefix", "clone", "subgroup")

WIDE = """
    from datetime import timedelta

    import pytest
    import torch.distributed as dist
    from torch.distributed import PrefixStore
    from torch.distributed.distributed_c10d import _get_default_store

    pytestmark = pytest.mark.ddp(world_size=2)


    SOON, LONG = timedelta(seconds=3), timedelta(hours=1)


    def own():
        return PrefixStore("own", _get_default_store())


    def below():
        return _get_default_store()._underlying_non_prefix_store


    @pytest.fixture(scope="class")
    def address(ddp):
        if ddp.rank == 0:
            own().set("address", "here")
        yield
        assert own().get("address") == b"here"


    class TestWide:
        @pytest.mark.parametrize("time", [1, 2, 3])
        def test_reads(self, address, time):
            assert own().get("address") == b"here"


        def test_reads_by_itself(self):
            assert own().get("address") == b"here"


    def test_is_over():
        assert not own().check(["address"])


    @pytest.fixture(scope="class")
    def patient(ddp):
        _get_default_store().set_timeout(LONG)
        below().set("of_fixture", "1")


    class TestTimeout:
        def test_sets(self, patient):
            assert _get_default_store().timeout == LONG
            _get_default_store().set_timeout(SOON)

        def test_after(self, patient):
            assert _get_default_store().timeout == LONG
            assert below().check(["of_fixture"])


    def test_timeout_is_over():
        assert _get_default_store().timeout not in (SOON, LONG)
        assert not below().check(["of_fixture"])


    @pytest.fixture(scope="module")
    def store():
        return _get_default_store()


    @pytest.mark.parametrize("time", [1, 2])
    def test_held(ddp, store, time):
        assert store is _get_default_store()
        store.add("count", 1)
        ddp.barrier()
        assert store.add("count", 0) == 2 * time
"""


OBJECTS = """
    import os

    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)
    KEPT = []


    def serve():
        return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


    def test_keeps_a_server(ddp):
        if ddp.rank == 1:
            KEPT.append(serve())


    def test_keeps_files(ddp, tmp_path):
        for name in ("one", "two"):
            KEPT.append(dist.FileStore(str(tmp_path / name), 2))


    PIDS = []


    def test_uses_some(ddp, tmp_path):
        PIDS.append(os.getpid())
        store = dist.FileStore(str(tmp_path / "used"), 2)
        store.add("count", 1)
        cycle = [serve()]
        cycle.append(cycle)


    def test_fails_with_one(ddp):
        store = serve()
        assert store is None


    def test_catches(ddp):
        with pytest.raises(AssertionError) as caught:
            test_fails_with_one(ddp)


    def test_group_of_its_own(ddp, tmp_path):
        dist.destroy_process_group()
        store = dist.FileStore(str(tmp_path / "own"), 2)
        dist.init_process_group("gloo", store=store, rank=ddp.rank, world_size=2)
        dist.barrier()


    @pytest.fixture(scope="module")
    def served():
        return serve()


    def test_fixture(ddp, served):
        served.set("here", "1")


    def test_of_one_rank(ddp, served):
        assert served.get("here") == b"1"
        assert PIDS == [os.getpid()]
"""


@pytest.fixture(scope="module")
def objects(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_objects.py", OBJECTS)
    return suite.run(*LOADFILE)


def test_stores_that_a_test_holds_are_named(objects: Finished) -> None:
    server, files = objects.warnings
    assert "test_keeps_a_server: left a TCPStore (127.0.0.1:" in server
    assert server.endswith(") behind on rank 1; the rank is replaced")
    assert "test_keeps_files: left 2 FileStores (" in files
    assert files.endswith(" behind; the ranks are replaced")


def test_stores_of_others_are_not(objects: Finished) -> None:
    objects.assert_outcomes(passed=7, failed=1)
    assert objects["test_fails_with_one"].verdict == "failed"
    assert objects["test_of_one_rank"].verdict == "passed"


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_keys.py", SOURCE)
    suite.write("test_wide.py", WIDE)
    return suite.run(*LOADFILE)


@pytest.mark.parametrize("store", ["default", "of_group", "in_group"])
def test_a_key_of_the_last_test_is_gone(finished: Finished, store: str) -> None:
    assert finished[f"test_handshake[{store}-True]"].verdict == "passed"
    silent = finished[f"test_handshake[{store}-False]"]
    assert silent.verdict == "failed"
    assert "Wait timeout" in silent.text


@pytest.mark.parametrize(
    "name",
    [
        *("test_counter", "test_all_ways_lead_to_one_store", "test_group_of_one_name"),
        "test_timeout",
        *(f"test_below[{way}]" for way in WAYS),
    ],
)
@pytest.mark.parametrize("time", ["first", "second"])
def test_each_test_begins_with_none(finished: Finished, name: str, time: str) -> None:
    assert finished[f"{name}[{time}]".replace("][", "-")].verdict == "passed"


@pytest.mark.parametrize(
    "name",
    [
        *(f"test_reads[{time}]" for time in (1, 2, 3)),
        *("test_reads_by_itself", "test_is_over", "test_held[1]", "test_held[2]"),
        *("test_sets", "test_after", "test_timeout_is_over"),
    ],
)
def test_keys_of_a_fixture_live_as_long_as_it(finished: Finished, name: str) -> None:
    assert finished[name].verdict == "passed"


def test_nothing_is_warned_of(finished: Finished) -> None:
    assert "DdpWarning" not in finished.stdout
