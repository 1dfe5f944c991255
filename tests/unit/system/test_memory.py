"""Whether the out-of-memory killer has struck, by the kernel's own counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddp.system.machine import OomKills, OomKillWatch, count_oom_kills

VERSION_1 = "9:name=systemd:/\n4:memory:/jobs/7\n3:cpuset:/\n0::/\n"
VERSION_2 = "0::/jobs/7\n"


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / NAMES[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


NAMES = {
    "own": "proc/self/cgroup",
    "vmstat": "proc/vmstat",
    "control": "sys/fs/cgroup/memory/jobs/7/memory.oom_control",
    "control_of_container": "sys/fs/cgroup/memory/memory.oom_control",
    "events": "sys/fs/cgroup/jobs/7/memory.events",
    "events_of_container": "sys/fs/cgroup/memory.events",
}
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
EVENTS = "low 0\nhigh 0\nmax 12\noom 2\noom_kill {}\noom_group_kill 9\n"


def test_nothing_is_known(tmp_path: Path) -> None:
    assert count_oom_kills(tmp_path) == OomKills(0, 0)


@pytest.mark.parametrize(
    "files",
    [
        {"own": VERSION_1, "control": CONTROL.format(3)},
        {"own": VERSION_1, "control_of_container": CONTROL.format(3)},
        {"own": VERSION_2, "events": EVENTS.format(3)},
        {"own": VERSION_2, "events_of_container": EVENTS.format(3)},
        {"own": VERSION_2, "events": EVENTS.format(3), "events_of_container": EVENTS.format(8)},
    ],
)
def test_own_group_is_read(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, vmstat="nr_free_pages 1\noom_kill 5\n", **files)
    assert count_oom_kills(tmp_path) == OomKills(3, 5)


def test_old_kernel_counts_nothing(tmp_path: Path) -> None:
    write(tmp_path, own=VERSION_1, control="oom_kill_disable 0\nunder_oom 0\n", vmstat="x 1\n")
    assert count_oom_kills(tmp_path) == OomKills(0, 0)


def test_this_machine_can_be_read() -> None:
    """Reading raises nothing, whatever the counters of this machine are; they never fall."""
    assert count_oom_kills().since(count_oom_kills()) == ""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (OomKills(1, 5), OomKills(1, 5), ""),
        (OomKills(1, 5), OomKills(2, 6), "killed a process of this control group"),
        (OomKills(1, 5), OomKills(3, 9), "killed 2 processes of this control group"),
        (OomKills(0, 5), OomKills(0, 6), "killed a process on this machine"),
    ],
)
def test_since(before: OomKills, after: OomKills, said: str) -> None:
    assert after.since(before) == said


def test_a_test_gets_those_that_were_killed_in_it(tmp_path: Path) -> None:
    watch = OomKillWatch(tmp_path)
    write(tmp_path, vmstat="oom_kill 5\n")
    watch.begin()
    write(tmp_path, vmstat="oom_kill 6\n")
    assert watch.end() == "killed a process on this machine"
    watch.begin()
    assert watch.end() == ""


def test_of_long_tests_each_counts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddp.system.machine._RECENT", 0.0)
    watch = OomKillWatch(tmp_path)
    for count in (5, 6):  # the second was killed in a test that has not failed
        write(tmp_path, vmstat=f"oom_kill {count}\n")
        watch.begin()
    assert watch.end() == ""
