"""What is heard and seen of files that are written, and what forked children know."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import filelock
import pytest
import torch
from ddp_conformance import Writer
from ddp_conformance.framework.recording import describe
from ddp_conformance.launched.start.forks import become_rank, forget_rank, in_child
from ddp_conformance.lockstep.machines import Place, environment_of, several_machines
from ddp_conformance.writing.writes import FileChange, Written, looking_at, writes_below


def test_what_python_opens_and_renames_is_heard(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    with writes_below(inside) as log:
        (outside / "a").write_text("a")
        (inside / "b").write_text("b")
        os.close(os.open(inside / "c", os.O_RDWR | os.O_CREAT))
        (outside / "a").replace(inside / "d")
        (inside / "b").read_text()
        with pytest.raises(FileNotFoundError):
            (inside / "e").read_text()
    (inside / "f").write_text("f")
    assert list(log.paths) == ["b", "c", "d"]


def test_what_is_touched_and_linked_is_heard(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with writes_below(tmp_path) as log:
        (tmp_path / "a").touch()
        (tmp_path / "b").symlink_to("absent")
        (tmp_path / "c").hardlink_to(tmp_path / "a")
        (tmp_path / "d").mkdir()
    claims = {"a": "", "b": "/", "c": "/"}
    assert list(log.written()) == [Written(name, False, claim) for name, claim in claims.items()]


def test_what_is_still_there_and_what_is_a_lock_is_reported(tmp_path: Path) -> None:
    with writes_below(tmp_path) as log:
        for name in ("soft", "hard", "range", "marked", "gone"):
            (tmp_path / name).touch()
        with filelock.SoftFileLock(tmp_path / "soft.lock"), filelock.FileLock(tmp_path / "hard"):
            pass
        with (tmp_path / "range").open("w") as stream:
            fcntl.lockf(stream, fcntl.LOCK_EX)
        with (tmp_path / "marked").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.write("1")
        with (tmp_path / "gone").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
        (tmp_path / "gone").unlink()
        (tmp_path / "next").touch()  # often with the inode of the one before
    locks = {written.path: written.lock for written in log.written()}
    assert locks == {
        "soft": False,
        "hard": True,
        "range": True,
        "marked": False,
        "next": False,
    }


def test_changed_rows_are_heard_and_connections_are_not(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with writes_below(tmp_path) as log, closing(sqlite3.connect(path)) as rows:
        rows.execute("CREATE TABLE IF NOT EXISTS t (n)")
        rows.execute("SELECT * FROM t").fetchall()
        assert not log.paths
        rows.execute("INSERT INTO t VALUES (1)")
        assert list(log.paths) == ["rows.db"]
    with writes_below(tmp_path) as log, closing(sqlite3.connect(f"file:{path}", uri=True)) as rows:
        rows.execute("DELETE FROM t")
    assert list(log.paths) == ["rows.db"]


def test_something_can_be_done_before_a_change(tmp_path: Path) -> None:
    changes: list[FileChange] = []
    existed: list[bool] = []

    def before(change: FileChange) -> None:
        changes.append(change)
        existed.append((tmp_path / change.paths[-1]).exists())

    with writes_below(tmp_path, before):
        (tmp_path / "a").write_text("a")
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "c").symlink_to("b")
        (tmp_path / "d").mkdir()
        (tmp_path / "e").open("x").close()
    (tmp_path / "d").rmdir()
    assert changes == [
        FileChange(("a",)),
        FileChange(("a", "b"), takes=True, names=True),
        FileChange(("c",), takes=True, names=True),
        FileChange(("d",), takes=True),
        FileChange(("e",), takes=True),
    ]
    assert existed == [False] * 5


def test_every_state_between_two_calls_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a"
    seen: list[str | None] = []

    def look(place: str) -> None:
        seen.append(path.read_text() if path.exists() else None)

    with looking_at(tmp_path, look):
        path.write_text("one")
        beside = tmp_path / "beside"
        beside.write_text("two")
        beside.replace(path)
    assert seen[0] == "", "the empty file between open and write"
    assert list(dict.fromkeys(seen)) == ["", "one", "two"]


def test_every_state_that_a_thread_leaves_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a"
    seen: list[str] = []
    with looking_at(tmp_path, lambda place: seen.append(path.read_text())):
        thread = threading.Thread(target=path.write_text, args=("one",))
        thread.start()
        thread.join()
    assert seen == ["", "one"]
    assert threading.getprofile() is None


def test_several_threads_may_share_a_lock_with_the_reader(tmp_path: Path) -> None:
    """No change is seen twice, and nobody waits for ever."""
    guard = threading.RLock()
    seen: list[int] = []

    def read(place: str) -> None:
        with guard:
            seen.append(len(list(tmp_path.iterdir())))

    def write(name: str) -> None:
        with guard:
            (tmp_path / name).touch()

    with looking_at(tmp_path, read):
        threads = [threading.Thread(target=write, args=(str(n),)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(seen) <= len(threads)


def test_what_is_seen_between_calls_is_at_a_line_of_the_users(tmp_path: Path) -> None:
    seen: list[str] = []
    with writes_below(tmp_path), looking_at(tmp_path, seen.append):
        torch.save({}, tmp_path / "a.pt")
        (tmp_path / "b").write_text("b")
    assert {place.rpartition(":")[0] for place in seen} == {__file__}


def test_an_error_is_at_the_line_of_the_users_that_called_the_library(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.save({}, tmp_path / "absent" / "a.pt")
    assert f" ({__file__}:" in describe(caught.value)
    with pytest.raises(EOFError) as without_text:
        raise EOFError
    assert describe(without_text.value).startswith(f"EOFError ({__file__}:")


def test_a_child_forgets_its_rank_and_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")

    def ranks() -> tuple[str | None, str]:
        forget_rank()
        before = os.environ.get("RANK")
        become_rank(environment_of("torchrun", Place(1, 2)))
        return before, os.environ["RANK"]

    assert in_child(ranks) == (None, "1")
    assert os.environ["RANK"] == "7"


def test_lightnings_launcher_sets_no_rank() -> None:
    assert environment_of("lightning", Place(3, 4, machines=2)) == {
        "NODE_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
    }


@pytest.mark.parametrize(("world_size", "machines"), [(1, 1), (2, 2), (3, 3), (4, 2), (9, 3)])
def test_machines_have_equally_many_ranks(world_size: int, machines: int) -> None:
    assert several_machines(world_size) == machines
    places = [Place(rank, world_size, machines) for rank in range(world_size)]
    assert [p.machine * p.ranks_here + p.local_rank for p in places] == list(range(world_size))
    assert {p.machine for p in places} == set(range(machines))


def test_an_unknown_launcher_is_an_error() -> None:
    message = r"unknown launcher 'mpi'; known: torchrun, lightning, slurm"
    with pytest.raises(ValueError, match=message):
        environment_of("mpi", Place(0, 1))


def raises() -> None:
    raise KeyError("x")


def test_a_child_that_raises_or_dies_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"a forked child of the rank raised: KeyError: 'x'"):
        in_child(raises)
    with pytest.raises(RuntimeError, match=r"a forked child of the rank died: 3"):
        in_child(lambda: os._exit(3))


def test_published_needs_records() -> None:
    with pytest.raises(ValueError, match=r"Path: the trait 'published' needs records="):
        Writer(Path, {"published"})
