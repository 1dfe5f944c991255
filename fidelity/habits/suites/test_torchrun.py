"""pytest in every rank, started by torchrun."""

import datetime
from types import SimpleNamespace

import bodies
import pytest
import torch.distributed as dist
import work


@pytest.fixture(scope="session", autouse=True)
def ddp():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=bodies.LIMIT))
    yield SimpleNamespace(rank=dist.get_rank())
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def model():
    return object()


@pytest.mark.parametrize("number", range(4))
def test_reduce(ddp, number):
    bodies.reduce(ddp.rank)


def test_fails_on_one(ddp):
    rank = ddp.rank
    work.say(f"said by rank {rank}")
    value = 41 + rank
    expected = 41
    assert value == expected


def test_covers(ddp):
    bodies.covers(ddp.rank)


def test_warns(ddp):
    bodies.warns(ddp.rank)


def test_skips(ddp):
    bodies.skips(ddp.rank)


def test_monkeypatch(monkeypatch):
    monkeypatch.setattr(work, "VALUE", 7)
    assert work.VALUE == 7


def test_capsys(capsys):
    work.say("words")
    assert capsys.readouterr().out == "words\n"


def test_capfd(capfd):
    work.say("words")
    assert "words" in capfd.readouterr().out


def test_caplog(caplog):
    work.log("words")
    assert "words" in caplog.text


def test_tmp_path(ddp, tmp_path):
    (tmp_path / str(ddp.rank)).touch()
    dist.barrier()
    assert len(list(tmp_path.iterdir())) == 2


def test_session_one(model):
    bodies.SEEN.append(model)


def test_session_two(model):
    assert [model] == bodies.SEEN


def test_subtests(ddp, subtests):
    for number in range(2):
        with subtests.test(number=number):
            assert number == 0 or ddp.rank == 0


def test_property(ddp, record_property):
    record_property("answer", 42)


def test_first(ddp):
    bodies.first(ddp.rank)


def test_second(ddp):
    bodies.second(ddp.rank)


def test_flaky(ddp):
    bodies.flaky(ddp.rank)


def test_hangs(ddp):
    bodies.hangs(ddp.rank)


def test_last(ddp):
    bodies.reduce(ddp.rank)
