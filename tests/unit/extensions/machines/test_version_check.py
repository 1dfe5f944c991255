"""Whether machines run the same."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from pytest_ddp.extensions.machines import version_check


def test_versions_are_those_that_run() -> None:
    found = version_check.versions()
    assert found["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert version_check.other_version(found, dict(found)) == ""


def test_the_first_version_that_differs_is_named() -> None:
    ours = {"python": "3.11.7", "torch": "2.13", "pytest": "9.2"}
    theirs = {"python": "3.11.7", "torch": "2.12", "pytest": "9.1"}
    assert version_check.other_version(ours, theirs) == "torch is 2.12 there and 2.13 on node 0"
    assert version_check.other_version(ours, {"python": "3.11.7"}) == (
        "torch is none there and 2.13 on node 0"
    )


def test_the_first_file_that_differs_is_named(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.py", "b.py", "c.py")]
    for file in files:
        file.write_text(file.name)
    expected = version_check.digests(map(str, files))
    assert version_check.other_file(expected) == ""
    files[1].write_text("other")
    files[2].unlink()
    assert version_check.other_file(expected) == (
        f"{files[1]} has another content there than on node 0"
    )
    files[1].write_text("b.py")
    assert version_check.other_file(expected) == f"{files[2]} is missing there"


def test_a_file_that_is_missing_on_both_is_no_difference(tmp_path: Path) -> None:
    assert version_check.other_file(version_check.digests([str(tmp_path / "none.py")])) == ""
