"""Names of files: the same for one file on all ranks, and in each run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_ddp.extensions.explore.ranks.paths import Paths, point_name

PATHS = Paths("/tmp/it/test_one0", "/home/me/project")

NAMED = {
    "/tmp/it/test_one0/best.ckpt": "best.ckpt",
    "/tmp/it/test_one0/a/../b//c.pt": "b/c.pt",
    "/tmp/it/test_one0": ".",
    b"/tmp/it/test_one0/of-bytes": "of-bytes",
    Path("/tmp/it/test_one0/of/path"): "of/path",
    "/home/me/project/data/x.bin": "rootdir/data/x.bin",
    "/tmp/it/test_one00/other": "",
    "/tmp/it/test_one1/other": "",
    "/home/me/project/model.py": "",
    "/home/me/project/__pycache__/model.cpython-311.pyc": "",
    "/home/me/project/.git/index": "",
    "/home/me/project/.venv/lib/python3.11/site-packages/x.json": "",
    "/etc/passwd": "",
    None: "",
}


@pytest.mark.parametrize("path", NAMED)
def test_only_files_of_the_test_and_its_root_have_names(path: object) -> None:
    assert PATHS.name(path) == NAMED[path]


def test_relative_paths_and_descriptors_are_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").touch()
    paths = Paths(str(tmp_path), "/nowhere")
    monkeypatch.chdir(tmp_path / "sub")
    assert paths.name("file") == "sub/file"
    assert paths.name("../file") == "file"
    folder = os.open(tmp_path / "sub", os.O_RDONLY)
    try:
        assert paths.name("file", folder) == "sub/file"
        assert paths.name(folder) == "sub"
    finally:
        os.close(folder)
    assert paths.name(folder) == ""


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("best.ckpt", "best.ckpt"),
        ("step-12/model.pt", "step-12/model.pt"),
        ("tmpab12_x9z", "*"),
        ("a/tmpab12_x9z.pt", "a/*.pt"),
        ("3f2504e0-4f89-11d3-9a0c-0305e82c3301.tmp", "*.tmp"),
        ("template", "template"),
    ],
)
def test_what_is_made_up_in_each_run_is_in_no_point(name: str, shown: str) -> None:
    assert point_name(name) == shown
