"""The helper that most projects write by hand."""

import datetime
import functools

import bodies
import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
import work


def on_rank(rank, body, store):
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, 2),
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=bodies.LIMIT),
    )
    body(rank)
    dist.destroy_process_group()


@pytest.fixture
def run(tmp_path_factory):
    def run(body):
        store = str(tmp_path_factory.mktemp("store") / "store")
        mp.spawn(on_rank, args=(body, store), nprocs=2)

    return run


@pytest.fixture(scope="session")
def model():
    return object()


@pytest.mark.parametrize("number", range(4))
def test_reduce(run, number):
    run(bodies.reduce)


def fails_on_one(rank):
    work.say(f"said by rank {rank}")
    value = 41 + rank
    expected = 41
    assert value == expected


def test_fails_on_one(run):
    run(fails_on_one)


def test_covers(run):
    run(bodies.covers)


def test_warns(run):
    run(bodies.warns)


def test_skips(run):
    run(bodies.skips)


def test_first(run):
    run(bodies.first)


def test_second(run):
    run(bodies.second)


def test_flaky(run):
    run(bodies.flaky)


def test_hangs(run):
    run(bodies.hangs)


def test_last(run):
    run(bodies.reduce)


def patched(rank):
    assert work.VALUE == 7


def test_monkeypatch(run, monkeypatch):
    monkeypatch.setattr(work, "VALUE", 7)
    run(patched)


def says(rank):
    work.say("words")


def test_capsys(run, capsys):
    run(says)
    assert "words" in capsys.readouterr().out


def test_capfd(run, capfd):
    run(says)
    assert "words" in capfd.readouterr().out


def logs(rank):
    work.log("words")


def test_caplog(run, caplog):
    run(logs)
    assert "words" in caplog.text


def touches(folder, rank):
    (folder / str(rank)).touch()


def test_tmp_path(run, tmp_path):
    run(functools.partial(touches, tmp_path))
    assert len(list(tmp_path.iterdir())) == 2


def keeps(model, rank):
    bodies.SEEN.append(model)


def kept(model, rank):
    assert [model] == bodies.SEEN


def test_session_one(run, model):
    run(functools.partial(keeps, model))


def test_session_two(run, model):
    run(functools.partial(kept, model))


def has_subtests(subtests, rank):
    for number in range(2):
        with subtests.test(number=number):
            assert number == 0 or rank == 0


def test_subtests(run, subtests):
    run(functools.partial(has_subtests, subtests))


def records(record_property, rank):
    record_property("answer", 42)


def test_property(run, record_property):
    run(functools.partial(records, record_property))
