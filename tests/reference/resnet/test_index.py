"""Listing and checking the image folder, once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ddp_reference.resnet import prepare
from ddp_reference.resnet.agreement import ConfigError
from ddp_reference.resnet.index import ImageFile, ImageIndex, read_index, scan
from ddp_reference.resnet.make_data import main as make_data_main
from ddp_reference.resnet.make_data import make_data
from ddp_reference.resnet.prepare import CHUNK, check_images, prepare_index


@pytest.fixture
def copy(dataset: Path, tmp_path: Path) -> Path:
    """The data set, free to be damaged."""
    return shutil.copytree(dataset, tmp_path / "copy", ignore=shutil.ignore_patterns(".*"))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were decoded."""
    names: list[str] = []

    def spy(path: Path) -> None:
        names.append(path.name)

    monkeypatch.setattr(prepare, "load_image", spy)
    return names


def test_the_layout_is_that_of_imagenet(dataset: Path) -> None:
    index = scan(dataset)
    assert index.classes == ("stripes00.0", "stripes45.0", "stripes90.0")
    assert (len(index.train), len(index.val)) == (27, 17)
    assert [file.label for file in index.train] == [0] * 9 + [1] * 9 + [2] * 9
    first = index.train[0]
    assert first.path == "train/stripes00.0/00000.jpg"
    assert first.size == (dataset / first.path).stat().st_size


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"schema": 2}', '{"schema": 1, "train": [[1]]}']
)
def test_a_damaged_index_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "index").write_text(text)
    with pytest.raises(ConfigError, match=r"index is no list of images .*remove it"):
        read_index(tmp_path / "index")


def test_the_digest_sees_samples_and_not_times() -> None:
    file = ImageFile("train/a/1.jpg", 0, 5, 7)
    index = ImageIndex(("a",), (file,), (), checked=True)
    later = ImageIndex(("a",), (ImageFile("train/a/1.jpg", 0, 5, 8),), (), checked=False)
    larger = ImageIndex(("a",), (ImageFile("train/a/1.jpg", 0, 6, 7),), (), checked=True)
    assert index.digest() == later.digest() != larger.digest()


def remove_val(root: Path) -> None:
    shutil.rmtree(root / "val")


def remove_classes(root: Path) -> None:
    for folder in (root / "train").iterdir():
        shutil.rmtree(folder)


def remove_one_class(root: Path) -> None:
    shutil.rmtree(root / "val" / "stripes45.0")


def empty_one_class(root: Path) -> None:
    for path in (root / "train" / "stripes45.0").iterdir():
        path.rename(path.with_suffix(".txt"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_val, "there is no folder .*val; .*make_data"),
        (remove_classes, "train holds no class folders"),
        (remove_one_class, "same classes, but only one of them has stripes45.0"),
        (empty_one_class, "stripes45.0 holds no images"),
    ],
)
def test_an_unusable_folder_is_named(
    copy: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(copy)
    with pytest.raises(ConfigError, match=message):
        scan(copy)


def test_a_second_run_decodes_and_writes_nothing(copy: Path, decoded: list[str]) -> None:
    path = copy / "index.json"
    index = prepare_index(copy, path, check=True)
    assert len(decoded) == 44
    before = last_write(path)
    assert prepare_index(copy, path, check=True) == index
    assert len(decoded) == 44
    assert last_write(path) == before


def last_write(path: Path) -> tuple[int, int, int]:
    """The moment of a file's last write. When it was read is no part of it, which a kernel may note
    at a first reading.
    """
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def test_a_changed_file_is_checked_again(copy: Path, decoded: list[str]) -> None:
    path = copy / "index.json"
    prepare_index(copy, path, check=True)
    decoded.clear()
    changed = copy / "train" / "stripes00.0" / "00003.jpg"
    os.utime(changed, ns=(1, 1))
    prepare_index(copy, path, check=True)
    assert decoded == ["00003.jpg"]


def test_what_was_only_listed_is_checked_when_asked(copy: Path, decoded: list[str]) -> None:
    path = copy / "index.json"
    assert not prepare_index(copy, path, check=False).checked
    assert decoded == []
    assert prepare_index(copy, path, check=True).checked
    assert len(decoded) == 44
    assert read_index(path).checked


def test_a_damaged_index_is_made_again(copy: Path) -> None:
    (copy / "index.json").write_text("{")
    assert prepare_index(copy, copy / "index.json", check=True) == read_index(copy / "index.json")


def test_corrupt_images_are_named_and_counted(copy: Path) -> None:
    for path in sorted((copy / "train" / "stripes00.0").iterdir())[:5]:
        path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ConfigError) as caught:
        prepare_index(copy, copy / "index.json", check=True)
    text = str(caught.value)
    assert text.startswith("5 of 44 images: ")
    assert text.count("cannot be decoded") == 3
    assert f"{copy}/train/stripes00.0/00000.jpg" in text
    assert text.endswith("; and 2 more")
    assert not (copy / "index.json").exists()


def test_more_files_than_a_chunk_are_all_checked(decoded: list[str]) -> None:
    files = [ImageFile(f"{n}.jpg", 0, 1, 1) for n in range(CHUNK + 1)]
    check_images(Path("anywhere"), files)
    assert len(decoded) == CHUNK + 1


def test_an_unwritable_place_for_the_index_is_named(copy: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*missing/index.json .*--index"):
        prepare_index(copy, copy / "missing" / "index.json", check=False)


def test_the_data_maker_repeats_and_refuses_to_mix(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_data(tmp_path / name, classes=2, train=1, val=1, size=16, seed=3)
    first, second = (
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*.jpg")}
        for root in (tmp_path / "a", tmp_path / "b")
    )
    assert first == second
    assert len(first) == 4
    with pytest.raises(ValueError, match="train exists"):
        make_data(tmp_path / "a")


def test_the_data_makers_command_names_wrong_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        make_data_main([str(tmp_path), "--train=0"])
    assert "train=0" in capsys.readouterr().err
