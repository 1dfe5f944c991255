"""The guess whether a file has ddp tests, made before it is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddp.settings.prescan import looks_marked


def looks(folder: Path, text: str, name: str = "test_it.py") -> bool:
    file = folder / name
    file.write_text(text)
    return looks_marked(file)


@pytest.mark.parametrize(
    "text",
    [
        "@pytest.mark.ddp(world_size=2)\ndef test_it(ddp): ...",
        "@mark.ddp\ndef test_it(ddp): ...",
        "import pytest\n\nclass TestIt:\n    @pytest.mark.ddp\n    def test_it(self): ...",
        "pytestmark = pytest.mark.ddp(world_size=2)",
        "pytestmark = [pytest.mark.slow, pytest.mark.ddp]",
    ],
)
def test_marks_are_seen(tmp_path: Path, text: str) -> None:
    assert looks(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "def test_it(): ...",
        "import ddp\n\n\ndef test_ddp(): ...",
        "# without @pytest.mark.ddp",
        "@pytest.mark.ddp_slow\ndef test_it(): ...",
        "marker = 'ddp'",
    ],
)
def test_other_texts_are_not(tmp_path: Path, text: str) -> None:
    assert not looks(tmp_path, text)


@pytest.mark.parametrize("name", ["conftest.py", "README.md", "test_data.csv"])
def test_other_files_are_not_read(tmp_path: Path, name: str) -> None:
    assert not looks(tmp_path, "@pytest.mark.ddp", name)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert not looks_marked(tmp_path / "test_gone.py")
