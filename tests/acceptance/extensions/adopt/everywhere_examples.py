"""Suites written for ``torchrun -m pytest``, on one machine or on several."""

from __future__ import annotations

PLACE = """
    import os

    WORLD_SIZE = int(os.environ["WORLD_SIZE"])
    RANK = int(os.environ["RANK"])
"""

AT_NEED = """
    import unittest

    import pytest
    import torch
    import torch.distributed as dist

    from place import RANK, WORLD_SIZE

    def init():
        if not dist.is_initialized():
            dist.init_process_group("gloo")

    def total():
        ones = torch.ones(1)
        dist.all_reduce(ones)
        return ones.item()

    @pytest.fixture(scope="session")
    def place():
        return RANK, WORLD_SIZE

    def test_makes_the_group(place):
        init()
        assert place == (dist.get_rank(), dist.get_world_size())

    def test_finds_the_group(place):
        assert total() == WORLD_SIZE

    def test_makes_another_group_by_its_store():
        group = dist.new_group(list(range(WORLD_SIZE)))
        dist.barrier(group)
        dist.destroy_process_group(group)

    def test_each_rank_has_its_own_directory(tmp_path, tmpdir, tmp_path_factory):
        own = str(tmp_path), str(tmp_path_factory.mktemp("made"))
        assert own[0] == str(tmpdir)
        found = [None] * WORLD_SIZE
        dist.all_gather_object(found, own)
        assert len({*sum(found, ())}) == 2 * WORLD_SIZE
        (tmp_path / "log").write_text(str(RANK))
        dist.barrier()
        assert (tmp_path / "log").read_text() == str(RANK)

    @pytest.mark.parametrize("size", range(2))
    def test_with_parameters(size):
        assert total() == WORLD_SIZE

    @pytest.mark.skipif(WORLD_SIZE < 3, reason="needs three")
    def test_skipped():
        raise AssertionError

    class TestClass:
        def setup_method(self):
            init()

        def test_method(self):
            assert total() == WORLD_SIZE

    class TestCase(unittest.TestCase):
        def setUp(self):
            init()

        def test_of_unittest(self):
            self.assertEqual(total(), WORLD_SIZE)
"""

BY_FIXTURE = """
    import pytest
    import torch.distributed as dist

    {mark}

    @pytest.fixture(scope="module", autouse=True)
    def group():
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("gloo")
        yield
        dist.destroy_process_group()

    def test_in_the_group_of_a_fixture():
        dist.barrier()

    def test_once_more():
        group = dist.new_group([0, 1])
        dist.barrier(group)  # else a rank destroys it while its peer still connects
        dist.destroy_process_group(group)
"""

AT_IMPORT = """
    import pytest
    import torch.distributed as dist

    dist.init_process_group("gloo")

    @pytest.fixture(scope="session", autouse=True)
    def ready():
        dist.barrier()

    def pytest_sessionfinish():
        dist.destroy_process_group()
"""

IN_A_GROUP = """
    import os

    import pytest
    import torch.distributed as dist

    WORLD_SIZE = dist.get_world_size()

    if WORLD_SIZE != 3:
        pytest.skip("needs three", allow_module_level=True)

    def test_first():
        dist.barrier()

    def test_fails_on_one():
        assert dist.get_rank() != 2

    def test_dies():
        if dist.get_rank() == 1:
            os._exit(3)
        dist.barrier()

    @pytest.mark.parametrize("time", range(2))
    def test_after(time):
        dist.barrier()
"""
