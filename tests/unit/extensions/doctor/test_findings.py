"""What was found, as lines."""

from __future__ import annotations

from pytest_ddp.extensions.doctor.findings import as_text, note, ok, stop, stops


def test_a_line_for_each_and_one_for_what_to_do() -> None:
    text = as_text([ok("network", "lo is up"), note("/dev/shm", "64 MiB", "--shm-size=2g")])
    assert text.splitlines() == [
        "ok    network       lo is up",
        "note  /dev/shm      64 MiB",
        "                    -> --shm-size=2g",
    ]


def test_long_lines_are_filled_and_commands_stay_whole() -> None:
    text = as_text([stop("torch", "word " * 40, "--an-option-that-is-not-broken " * 4)])
    assert all(len(line) <= 100 for line in text.splitlines())
    assert text.count("--an-option-that-is-not-broken") == 4


def test_only_stops_stop() -> None:
    assert stops([ok("a", ""), note("b", "")]) == []
    wrong = stop("c", "", "")
    assert stops([ok("a", ""), wrong]) == [wrong]
