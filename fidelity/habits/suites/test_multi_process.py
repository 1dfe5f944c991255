"""torch's own harness: a class of unittest, processes for each test."""

import datetime

import bodies
import pytest
import torch.distributed as dist
import work
from torch.testing._internal.common_distributed import MultiProcessTestCase


class TestHabits(MultiProcessTestCase):
    world_size = 2

    @pytest.fixture(autouse=True)
    def take_fixtures(self, request):
        # All that a class of unittest can have of them; in the pytest process.
        self.fixture = request.getfixturevalue

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def on_rank(self, body):
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(self.file_name, 2),
            rank=self.rank,
            world_size=2,
            timeout=datetime.timedelta(seconds=bodies.LIMIT),
        )
        body(self.rank)
        dist.destroy_process_group()

    def test_fails_on_one(self):
        rank = self.rank
        work.say(f"said by rank {rank}")
        value = 41 + rank
        expected = 41
        assert value == expected

    def test_covers(self):
        self.on_rank(bodies.covers)

    def test_warns(self):
        self.on_rank(bodies.warns)

    def test_skips(self):
        self.on_rank(bodies.skips)

    def test_first(self):
        self.on_rank(bodies.first)

    def test_second(self):
        self.on_rank(bodies.second)

    def test_flaky(self):
        self.on_rank(bodies.flaky)

    def test_hangs(self):
        self.on_rank(bodies.hangs)

    def test_last(self):
        self.on_rank(bodies.reduce)

    def test_monkeypatch(self):
        self.fixture("monkeypatch").setattr(work, "VALUE", 7)
        assert work.VALUE == 7

    def test_capsys(self):
        work.say("words")
        assert "words" in self.fixture("capsys").readouterr().out

    def test_capfd(self):
        work.say("words")
        assert "words" in self.fixture("capfd").readouterr().out

    def test_caplog(self):
        work.log("words")
        assert "words" in self.fixture("caplog").text

    def test_tmp_path(self):
        folder = self.fixture("tmp_path")
        (folder / str(self.rank)).touch()
        self.on_rank(lambda rank: dist.barrier())
        assert len(list(folder.iterdir())) == 2

    def test_session_one(self):
        bodies.SEEN.append(1)

    def test_session_two(self):
        assert bodies.SEEN == [1]

    def test_subtests(self):
        for number in range(2):
            with self.subTest(number=number):
                assert number == 0 or self.rank == 0

    def test_property(self):
        self.fixture("record_property")("answer", 42)


for number in range(4):

    def test(self):
        self.on_rank(bodies.reduce)

    test.__name__ = f"test_reduce_{number}"
    setattr(TestHabits, test.__name__, test)

del test  # which pytest would collect as well
