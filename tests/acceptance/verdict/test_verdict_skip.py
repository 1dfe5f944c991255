"""Skips, expected failures and ``pytest.exit``, over ranks that agree and that do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import UNDER_XDIST, Finished, Suite

SOURCE = """
    import os

    import pytest
    import torch
    import torch.distributed as dist

    ddp3 = pytest.mark.ddp(world_size=3)

    @ddp3
    def test_skip_all(ddp):
        pytest.skip("no data here")

    @ddp3
    def test_skip_all_for_own_reasons(ddp):
        pytest.skip(f"no shard {ddp.rank}")

    @ddp3
    @pytest.mark.parametrize("rank", range(3))
    def test_skip_one(ddp, rank):
        if ddp.rank == rank:
            pytest.skip("not on this rank")

    @ddp3
    @pytest.mark.parametrize("rank", range(3))
    def test_skip_one_fail_one(ddp, rank):
        if ddp.rank == rank:
            pytest.skip("not on this rank")
        assert ddp.rank != (rank + 1) % 3, "the failure"

    @ddp3
    @pytest.mark.parametrize("rank", range(3))
    def test_skip_one_die_one(ddp, rank):
        if ddp.rank == rank:
            pytest.skip("not on this rank")
        if ddp.rank == (rank + 1) % 3:
            os._exit(0)

    @ddp3
    @pytest.mark.parametrize("rank", range(3))
    def test_skip_all_but_one(ddp, rank):
        if ddp.rank != rank:
            pytest.skip("not on this rank")

    @pytest.fixture
    def skips_everywhere():
        pytest.skip("fixture without data")

    @pytest.fixture
    def skips_on_rank_1(ddp):
        if ddp.rank == 1:
            pytest.skip("fixture without data on rank 1")

    @ddp3
    def test_skip_all_in_setup(skips_everywhere):
        pass

    @ddp3
    def test_skip_one_in_setup(skips_on_rank_1):
        pass

    @ddp3
    @pytest.mark.skip(reason="marked")
    def test_skip_mark(ddp):
        pass

    @ddp3
    @pytest.mark.skipif(os.name == "posix", reason="not on posix")
    def test_skipif(ddp):
        pass

    @ddp3
    @pytest.mark.skipif(os.name != "posix", reason="not here")
    def test_skipif_false(ddp):
        pass

    @ddp3
    @pytest.mark.skipif("os.environ.get('RANK') == '2'", reason="rank 2 is not wanted")
    def test_skipif_by_rank(ddp):
        pass

    @ddp3
    def test_importorskip(ddp):
        pytest.importorskip("no_such_module_anywhere")

    @ddp3
    @pytest.mark.xfail(reason="known bug")
    def test_xfail(ddp):
        assert ddp.rank > 5

    @ddp3
    @pytest.mark.xfail(reason="known bug of one rank")
    @pytest.mark.parametrize("rank", range(3))
    def test_xfail_one(ddp, rank):
        assert ddp.rank != rank

    @ddp3
    @pytest.mark.xfail(reason="known bug", strict=True)
    def test_xfail_strict(ddp):
        assert ddp.rank > 5

    @ddp3
    @pytest.mark.xfail(reason="known bug of one rank", strict=True)
    @pytest.mark.parametrize("rank", range(3))
    def test_xfail_strict_one(ddp, rank):
        assert ddp.rank != rank

    @ddp3
    @pytest.mark.xfail(reason="mended since")
    def test_xpass(ddp):
        pass

    @ddp3
    @pytest.mark.xfail(reason="mended since", strict=True)
    def test_xpass_strict(ddp):
        pass

    @ddp3
    @pytest.mark.xfail(reason="would hang", run=False)
    def test_xfail_not_run(ddp):
        os._exit(1)

    @ddp3
    @pytest.mark.xfail(raises=ValueError, reason="wrong value")
    def test_xfail_raises(ddp):
        raise ValueError

    @ddp3
    @pytest.mark.xfail(raises=ValueError, reason="wrong value")
    def test_xfail_raises_other(ddp):
        raise TypeError("not that one")

    @ddp3
    @pytest.mark.xfail(raises=ValueError, reason="wrong value")
    @pytest.mark.parametrize("rank", range(3))
    def test_xfail_raises_other_on_one(ddp, rank):
        if ddp.rank == rank:
            raise TypeError("not that one")
        raise ValueError

    @ddp3
    def test_xfail_called(ddp):
        pytest.xfail("not yet")

    @ddp3
    @pytest.mark.xfail(reason="known bug")
    @pytest.mark.parametrize("rank", range(3))
    def test_xfail_crash(ddp, rank):
        if ddp.rank == rank:
            os.abort()

    @ddp3
    @pytest.mark.xfail(reason="known bug")
    def test_xfail_skip(ddp):
        pytest.skip("skipped after all")

    @ddp3
    @pytest.mark.xfail(reason="known bug")
    def test_xfail_in_setup(ddp, request):
        request.getfixturevalue("breaks")

    @pytest.fixture
    def breaks():
        raise ValueError("in setup")

    @ddp3
    @pytest.mark.xfail(reason="known bug")
    def test_xfail_fixture(breaks):
        pass

    @ddp3
    def test_last(ddp):
        ones = torch.ones(1)
        dist.all_reduce(ones)
        assert ones.item() == 3
"""


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_skips.py", SOURCE)
    return suite.run("-rA", timeout=90)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("skip_all", "no data here"),
        ("skip_all_in_setup", "fixture without data"),
        ("skip_mark", "marked"),
        ("skipif", "not on posix"),
        ("importorskip", "no_such_module_anywhere"),
        ("xfail_skip", "skipped after all"),
    ],
)
def test_skip_of_all_ranks_is_a_skip(finished: Finished, name: str, reason: str) -> None:
    result = finished[f"test_{name}"]
    assert result.verdict == "skipped"
    assert reason in result.text
    assert reason in finished.stdout


def test_skip_of_all_ranks_points_to_the_test_file(finished: Finished) -> None:
    """A skip's place is shown by ``-rs``: the user's line and not the plugin's."""
    line = next(
        number
        for number, text in enumerate(SOURCE.splitlines(), 1)
        if 'pytest.skip("no data here")' in text
    )
    assert f"test_skips.py:{line}: no data here" in finished.stdout


def test_skip_of_all_ranks_for_unlike_reasons_is_a_failure(finished: Finished) -> None:
    """A reason is part of what ranks must agree on: one of them could be an accident."""
    result = finished["test_skip_all_for_own_reasons"]
    assert result.verdict == "failed"
    assert "ranks disagree" in result.text
    for rank in range(3):
        assert f"rank {rank} skipped (no shard {rank})" in " ".join(result.text.split())


@pytest.mark.parametrize(
    "name",
    [
        *(f"skip_one[{rank}]" for rank in range(3)),
        *(f"skip_all_but_one[{rank}]" for rank in range(3)),
        "skipif_by_rank",
    ],
)
def test_partial_skip_is_a_failure(finished: Finished, name: str) -> None:
    result = finished[f"test_{name}"]
    assert result.verdict in ("failed", "error")
    assert "ranks disagree" in result.text


@pytest.mark.parametrize("rank", range(3))
def test_partial_skip_has_who_and_why(finished: Finished, rank: int) -> None:
    message = finished[f"test_skip_one[{rank}]"].phase("call").message
    peers = {0: "ranks 1-2", 1: "ranks 0, 2", 2: "ranks 0-1"}[rank]
    assert message == (f"ranks disagree: rank {rank} skipped (not on this rank), {peers} passed")


def test_partial_skip_in_setup_is_an_error(finished: Finished) -> None:
    result = finished["test_skip_one_in_setup"]
    assert result.verdict in ("failed", "error")
    assert "ranks disagree" in result.text
    assert "fixture without data on rank 1" in result.text


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize(
    ("name", "words"),
    [("skip_one_fail_one", "the failure"), ("skip_one_die_one", "exited with code 0")],
)
def test_failure_beats_skip(finished: Finished, name: str, words: str, rank: int) -> None:
    result = finished[f"test_{name}[{rank}]"]
    culprit = (rank + 1) % 3
    assert result.verdict == "failed"
    assert words in result.text
    assert result.phase("call").message.startswith(f"rank {culprit}")
    assert "not on this rank" in result.text


@pytest.mark.parametrize("name", ["skipif_false", "last"])
def test_passes(finished: Finished, name: str) -> None:
    result = finished[f"test_{name}"]
    assert result.verdict == "passed", result.text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("xfail", "known bug"),
        *((f"xfail_one[{rank}]", "known bug of one rank") for rank in range(3)),
        ("xfail_strict", "known bug"),
        *((f"xfail_strict_one[{rank}]", "known bug of one rank") for rank in range(3)),
        ("xfail_not_run", "[NOTRUN] would hang"),
        ("xfail_raises", "wrong value"),
        ("xfail_called", "not yet"),
        ("xfail_in_setup", "known bug"),
        ("xfail_fixture", "known bug"),
    ],
)
def test_expected_failure(finished: Finished, name: str, reason: str) -> None:
    result = finished[f"test_{name}"]
    assert result.verdict == "xfailed", result.text
    assert any(reason in (report.wasxfail or "") for report in result.reports)
    assert f"{name} - {reason}" in finished.stdout


def test_unexpected_pass(finished: Finished) -> None:
    result = finished["test_xpass"]
    assert result.verdict == "xpassed"
    assert "mended since" in (result.phase("call").wasxfail or "")


def test_unexpected_pass_is_a_failure_when_strict(finished: Finished) -> None:
    result = finished["test_xpass_strict"]
    assert result.verdict == "failed"
    assert "[XPASS(strict)] mended since" in result.text


@pytest.mark.parametrize(
    "name",
    ["xfail_raises_other", *(f"xfail_raises_other_on_one[{rank}]" for rank in range(3))],
)
def test_other_exception_than_expected_is_a_failure(finished: Finished, name: str) -> None:
    result = finished[f"test_{name}"]
    assert result.verdict == "failed"
    assert "TypeError: not that one" in result.text


@pytest.mark.parametrize("rank", range(3))
def test_crash_is_no_expected_failure(finished: Finished, rank: int) -> None:
    """A crash ends the session in plain pytest, whatever marks the test has."""
    result = finished[f"test_xfail_crash[{rank}]"]
    assert result.verdict == "failed"
    assert f"rank {rank}" in result.text
    assert "SIGABRT" in result.text


# ---------------------------------------------------------------- pytest.exit

EXIT = """
    import pytest

    @pytest.mark.ddp(world_size=3)
    def test_before(ddp):
        pass

    @pytest.fixture
    def exits_in_setup(ddp):
        if ddp.rank == 1:
            pytest.exit("no point in going on"{code})

    @pytest.mark.ddp(world_size=3)
    def test_exits({fixture}):
        if ddp.rank == 1:
            pytest.exit("no point in going on"{code})

    @pytest.mark.ddp(world_size=3)
    def test_after(ddp):
        print("ran all the same")

    def test_plain_after():
        print("ran all the same")
"""


@pytest.mark.skipif(UNDER_XDIST, reason="pytest-xdist has its own way with pytest.exit")
@pytest.mark.parametrize(
    ("code", "fixture", "returncode"),
    [
        ("", "ddp", pytest.ExitCode.INTERRUPTED),
        (", returncode=7", "ddp", 7),
        (", returncode=0", "ddp", 0),
        (", returncode=7", "ddp, exits_in_setup", 7),
    ],
    ids=["no code", "code 7", "code 0", "in setup"],
)
def test_exit_ends_the_session(suite: Suite, code: str, fixture: str, returncode: int) -> None:
    suite.write("test_exit.py", EXIT.format(code=code, fixture=fixture))
    finished = suite.run("-v", "-rA", timeout=40)
    assert finished["test_before"].verdict == "passed"
    assert "test_after" not in finished
    assert "test_plain_after" not in finished
    assert "ran all the same" not in finished.output
    assert "Exit: no point in going on" in finished.stdout
    assert "INTERNALERROR" not in finished.output
    assert "Traceback" not in finished.output
    assert finished.returncode == returncode
