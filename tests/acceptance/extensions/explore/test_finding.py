"""Races that exploring finds, how it shows them, and that it finds them again; right programs."""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.suite import LOADFILE, UNDER_XDIST, Finished, Suite, flat

RACES = """
    import os
    import threading
    import time

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2, timeout=60)


    def save(path):
        torch.save({"epoch": 1}, path)


    def test_removed_early(ddp, tmp_path):
        path = tmp_path / "best.ckpt"
        if ddp.rank == 0:
            save(path)
        dist.barrier()
        if ddp.rank == 1:
            torch.load(path)
        else:
            time.sleep(0.4)
            os.remove(path)
        dist.barrier()


    def test_key(ddp):
        store = dist.distributed_c10d._get_default_store()
        if ddp.rank == 0:
            store.set("ready", "yes")
        else:
            time.sleep(0.4)
            assert store.check(["ready"])


    def test_thread(ddp, tmp_path):
        thread = threading.Thread(target=save, args=(tmp_path / f"{ddp.rank}.pt",))
        thread.start()
        time.sleep(0.4)
        dist.barrier()
        torch.load(tmp_path / f"{1 - ddp.rank}.pt")
        dist.barrier()
        thread.join()


    def test_own_point(ddp):
        seen = []
        thread = threading.Thread(target=lambda: (ddp.point("fills"), seen.append(1)))
        thread.start()
        time.sleep(0.4)
        ddp.point("reads")
        first = [*seen]
        ddp.barrier()
        thread.join()
        assert first == [1]


    def test_sleeps_instead_of_a_barrier(ddp, tmp_path):
        path = tmp_path / "tokenizer.json"
        if ddp.rank == 0:
            path.write_text("{}")
        time.sleep(1)
        assert path.exists()


    @pytest.mark.ddp(world_size=2, isolate=True)
    def test_new_ranks_each_time(ddp, tmp_path):
        if ddp.rank == 0:
            (tmp_path / "made").mkdir()
        time.sleep(0.6)
        assert (tmp_path / "made").is_dir()


    def test_late_thread(ddp):
        seen = []
        thread = threading.Thread(target=seen.append, args=(1,))
        thread.start()
        time.sleep(0.4)
        first = [*seen]
        ddp.barrier()
        thread.join()
        assert first == [1]


    def until_it_exists(path):
        time.sleep(0.4)
        end = time.monotonic() + 30
        while not path.exists():
            assert time.monotonic() < end
            time.sleep(0.01)


    def test_read_while_it_is_saved(ddp, tmp_path):
        path = tmp_path / "last.ckpt"
        if ddp.rank == 0:
            torch.save({"epoch": 1}, path)
        until_it_exists(path)
        assert torch.load(path) == {"epoch": 1}


    def test_read_while_it_is_written(ddp, tmp_path):
        path = tmp_path / "words.txt"
        if ddp.rank == 0:
            path.write_text("a b")
        until_it_exists(path)
        assert path.read_text().split() == ["a", "b"]
"""

LEGAL = """
    import os
    import queue
    import threading
    import time
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2, timeout=60)


    def test_barrier_first(ddp, tmp_path):
        path = tmp_path / "best.ckpt"
        if ddp.rank == 0:
            torch.save({"epoch": 1}, path)
        dist.barrier()
        torch.load(path)
        dist.barrier()
        if ddp.rank == 0:
            os.remove(path)


    def test_polls_with_a_limit(ddp, tmp_path):
        path, end = tmp_path / "done", time.monotonic() + 30
        if ddp.rank == 0:
            (tmp_path / "new").write_text("x")
            os.replace(tmp_path / "new", path)
        while not path.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        assert path.read_text() == "x"


    def test_reads_until_it_is_whole(ddp, tmp_path):
        path, end, text = tmp_path / "words.txt", time.monotonic() + 30, ""
        if ddp.rank == 0:
            path.write_text("a b.")
        while not text.endswith("."):
            assert time.monotonic() < end
            time.sleep(0.01)
            text = path.read_text() if path.exists() else ""


    def test_queue_and_heartbeat(ddp, tmp_path):
        found, over = queue.Queue(), threading.Event()

        def beat():
            while not over.wait(0.02):
                (tmp_path / f"beat{ddp.rank}").write_text("x")

        def load():
            found.put((tmp_path / "in").read_text())

        threads = [threading.Thread(target=work) for work in (beat, load)]
        if ddp.rank == 0:
            (tmp_path / "in").write_text("batch")
        dist.barrier()
        for thread in threads:
            thread.start()
        assert found.get(timeout=30) == "batch"
        dist.barrier()
        over.set()
        for thread in threads:
            thread.join()


    @pytest.fixture(scope="module")
    def tokens():
        return ["one"]


    def test_uses_a_fixture_up(ddp, tokens, tmp_path):
        (tmp_path / f"{ddp.rank}").write_text(tokens.pop())


    @pytest.mark.skip(reason="not now")
    def test_skipped():
        pass


    @pytest.mark.xfail(strict=True)
    def test_expected_to_fail(ddp):
        assert ddp.rank == 1


    @pytest.mark.ddp(world_size=1)
    def test_alone():
        pass


    @pytest.mark.ddp(explore=0)
    def test_not_this_one(ddp):
        import sys

        assert not [name for name in sys.modules if ".explore.ranks" in name]
        assert os.stat.__module__ == "posix"


    def test_fails_each_time():
        assert False, "wrong on any schedule"


    def test_fails_in_turn(ddp):
        file = Path(__file__).with_name(f"turn{ddp.rank}")
        runs = int(file.read_text()) if file.exists() else 0
        file.write_text(str(runs + 1))
        assert runs % 2 == 0
"""


@pytest.fixture(scope="module")
def races(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("test_races.py", RACES)
    suite.write("test_legal.py", LEGAL)
    return suite


@pytest.fixture(scope="module")
def explored(races: Suite) -> Finished:
    arguments = "--ddp-explore=8", "-p", "cacheprovider", "test_races.py"
    return races.run(*arguments, *LOADFILE, timeout=120)


@pytest.fixture(scope="module")
def legal(races: Suite) -> Finished:
    return races.run("--ddp-explore=6", "-v", *LOADFILE, "test_legal.py", timeout=120)


FOUND = {
    "test_removed_early": (
        "fails when rank 1 is late before open(best.ckpt) at test_races.py:23; passes otherwise",
        "1@open:best.ckpt#1'",
        "rank 1 opens best.ckpt at test_races.py:23; rank 0 removes it at test_races.py:26;",
    ),
    "test_key": (
        "fails when rank 0 is late before set(ready) at test_races.py:33; passes otherwise",
        "0@set:ready#1'",
        "rank 0 sets key ready at test_races.py:33; rank 1 looks for it at test_races.py:36;",
    ),
    "test_thread": ("fails when thread 1 of rank", "", "nothing orders the two"),
    "test_own_point": (
        "fails when thread 1 of rank",
        "",
        "passes otherwise",
    ),
    "test_sleeps_instead_of_a_barrier": (
        "fails when rank 0 is late before open(tokenizer.json) at test_races.py:64",
        "0@open:tokenizer.json#1'",
        "rank 0 makes tokenizer.json at test_races.py:64; rank 1 looks for it",
    ),
    "test_new_ranks_each_time": (
        "fails when rank 0 is late before mkdir(made) at test_races.py:72",
        "0@mkdir:made#1'",
        "rank 0 makes made at test_races.py:72; rank 1 looks",
    ),
    "test_late_thread": (
        "fails when thread 1 of rank 0, started at test_races.py:80, begins late; passes otherwise",
        "0.1@begin#1'",
        "",
    ),
    "test_read_while_it_is_saved": (
        "fails when rank 0 is late before write(last.ckpt) at test_races.py:99",
        "0@write:last.ckpt#1'",
        "rank 0 fills last.ckpt at test_races.py:99; rank 1 reads it",
    ),
    "test_read_while_it_is_written": (
        "fails when rank 0 is late before write(words.txt) at test_races.py:107",
        "0@write:words.txt#1'",
        "rank 0 fills words.txt at test_races.py:107; rank 1 reads it",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_race_is_found_and_shown(explored: Finished, name: str) -> None:
    first, schedule, conflict = FOUND[name]
    result = explored[name]
    text = flat(result.text)
    assert result.verdict == "failed"
    assert text.startswith(first), text
    assert re.search(r"\(schedule \d of 8; 2 plain runs passed\)", text), text
    assert conflict in text
    assert f"Replay: --ddp-schedule='{schedule}" in text
    assert result.phase("call").message.startswith("fails when")


def test_no_hold_ended_by_time(explored: Finished, legal: Finished) -> None:
    assert "ended by a bound" not in explored.output + legal.output


GREEN = {
    "test_barrier_first": "explored: no conflict, 4 runs",
    "test_polls_with_a_limit": "explored: 2 conflicts",
    "test_reads_until_it_is_whole": "explored: 1 conflict",
    "test_queue_and_heartbeat": "explored: no conflict, 6 runs",
    "test_uses_a_fixture_up": "explored: no conflict, 6 runs",
}


@pytest.mark.parametrize("name", GREEN)
def test_a_right_program_passes(legal: Finished, name: str) -> None:
    assert legal[name].verdict == "passed"
    if not UNDER_XDIST:
        assert re.search(rf"{name} PASSED \({re.escape(GREEN[name])}", legal.output)


def test_what_is_not_explored_is_as_ever_and_counted(legal: Finished) -> None:
    assert legal["test_skipped"].verdict == "skipped"
    assert legal["test_expected_to_fail"].verdict == "xfailed"
    assert legal["test_alone"].verdict == "passed"
    assert legal["test_fails_each_time"].text.startswith("ranks 0-1 of 2 failed in call: Assertion")
    words = "it is skipped (1), it is expected to fail (1), it has one rank (1), it fails (1)"
    assert f"ddp: 4 tests not explored: {words}" in legal.flat


def test_what_is_not_explored_runs_without_hooks(legal: Finished) -> None:
    assert legal["test_not_this_one"].verdict == "passed"


def test_what_fails_in_turn_is_red(legal: Finished) -> None:
    assert legal["test_fails_in_turn"].text.startswith("fails in 2 of 5 runs without a hold\n")


def test_it_is_found_again_by_its_schedule(races: Suite) -> None:
    one = "test_races.py::test_removed_early"
    replayed = races.run("--ddp-schedule=1@open:best.ckpt#1", one)
    text = flat(replayed["test_removed_early"].text)
    assert text.startswith("fails when rank 1 is late before open(best.ckpt) at test_races.py:23 ")
    assert "FileNotFoundError" in text


def test_what_failed_comes_first_next_time(explored: Finished, races: Suite) -> None:
    arguments = "--ddp-explore=8", "-p", "cacheprovider", "-x", "test_races.py"
    again = races.run(*arguments, *LOADFILE, "-k", "early or key")
    assert "(schedule 2 of 8; 1 plain run passed)" in flat(again["test_removed_early"].text)
    if not UNDER_XDIST:
        assert "test_key" not in again


SLOW_ANSWER = """
    import os
    import time
    from pathlib import Path

    import pytest
    import torch.distributed as dist


    @pytest.mark.ddp(world_size=2, timeout=60)
    def test_slow_answer(ddp):
        if ddp.rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            Path(os.environ["SERVER"]).write_text(str(store.port))
        ddp.barrier()
        if ddp.rank == 1:
            store = dist.TCPStore("127.0.0.1", int(os.environ["SLOW_WAY"]), is_master=False)
        ddp.barrier()
        if ddp.rank == 0:
            store.set("ready", "yes")
        else:
            time.sleep(0.4)
            assert store.check(["ready"])
        ddp.barrier()
"""


def test_a_hold_lasts_while_the_answer_of_a_store_is_under_way(
    new_suite: Callable[[], Suite],
) -> None:
    """The rank looks as if it waited for others: the race would be missed on a busy machine."""
    suite = new_suite()
    server = suite.write("server", "")
    suite.write("test_slow.py", SLOW_ANSWER)
    with slow_way(server) as port:
        environment = {"SERVER": str(server), "SLOW_WAY": str(port)}
        found = suite.run("--ddp-schedule=0@set:ready#1", "test_slow.py", env=environment)
    assert found["test_slow_answer"].verdict == "failed"


@contextlib.contextmanager
def slow_way(server: Path) -> Iterator[int]:
    """A port from which what clients send comes to a server after half a second.

    Args:
        server: a file with its port.
    """

    class Way(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", int(server.read_text()))) as onward:
                back = threading.Thread(target=pass_on, args=(onward, self.request, 0.0))
                back.start()
                pass_on(self.request, onward, 0.5)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Way) as ways:
        serving = threading.Thread(target=ways.serve_forever)
        serving.start()
        yield ways.server_address[1]
        ways.shutdown()
        serving.join()


def pass_on(source: socket.socket, target: socket.socket, delay: float) -> None:
    """Send on what comes, each time after a delay, until one of both has ended."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            time.sleep(delay)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
