"""The list of images below a folder in ImageNet's layout, found once and read by all ranks.

Ranks that list a folder themselves may see different orders, or a file that has just
been added; then index 17 is one image here and another one there. So one process
lists, checks and publishes, and every rank reads the same file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from ddp_reference.resnet.agreement import ConfigError
from ddp_reference.resnet.files import write_whole

SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})
SPLITS = ("train", "val")
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One image; size and time tell whether it is still the one that was checked."""

    path: str
    """Relative to the root of the data set, with forward slashes."""
    label: int
    size: int
    """Bytes."""
    modified: int
    """Nanoseconds since 1970."""


@dataclass(frozen=True, slots=True)
class ImageIndex:
    """All images of a data set."""

    classes: tuple[str, ...]
    """Folder names, sorted; the position is the label."""
    train: tuple[ImageFile, ...]
    val: tuple[ImageFile, ...]
    checked: bool
    """True if every image has been decoded once."""

    def digest(self) -> str:
        """SHA-256 of what decides the samples: classes, paths, labels and sizes.

        Times are left out: copies of a data set on the nodes' own disks differ in them.
        """
        samples = [(file.path, file.label, file.size) for file in (*self.train, *self.val)]
        return hashlib.sha256(json.dumps([self.classes, samples]).encode()).hexdigest()


def scan(root: Path) -> ImageIndex:
    """List ``root/train/CLASS/*`` and ``root/val/CLASS/*``, sorted.

    Raises :class:`ConfigError` for a missing or empty folder, and for classes that
    are not the same in both splits.
    """
    classes = {split: list_classes(root, split) for split in SPLITS}
    if classes["train"] != classes["val"]:
        different = sorted(set(classes["train"]) ^ set(classes["val"]))
        raise ConfigError(
            f"{root}: train and val must hold the same classes, but only one of them has "
            f"{', '.join(different[:5])}"
        )
    files = {split: tuple(_files(root, split, classes[split])) for split in SPLITS}
    return ImageIndex(classes["train"], files["train"], files["val"], checked=False)


def list_classes(root: Path, split: str) -> tuple[str, ...]:
    """Names of the folders in ``root/split``, sorted. Raises :class:`ConfigError` without any."""
    folder = root / split
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {folder}; a data set is DIR/train/CLASS/*.jpg and "
            "DIR/val/CLASS/*.jpg, and python -m ddp_reference.resnet.make_data DIR makes one"
        )
    classes = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))
    if not classes:
        raise ConfigError(f"{folder} holds no class folders; images go into {folder}/CLASS/")
    return classes


def _files(root: Path, split: str, classes: tuple[str, ...]) -> Iterator[ImageFile]:
    for label, name in enumerate(classes):
        folder = root / split / name
        paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
        if not paths:
            raise ConfigError(
                f"{folder} holds no images ({', '.join(sorted(SUFFIXES))}); "
                "add some or remove the folder from train and val"
            )
        for path in paths:
            stat = path.stat()
            relative = path.relative_to(root).as_posix()
            yield ImageFile(relative, label, stat.st_size, stat.st_mtime_ns)


def write_index(path: Path, index: ImageIndex) -> None:
    """Publish an index. Raises :class:`ConfigError` if the file cannot be written."""
    document = {
        "schema": SCHEMA,
        "checked": index.checked,
        "classes": index.classes,
        "train": [astuple(file) for file in index.train],
        "val": [astuple(file) for file in index.val],
    }
    try:
        write_whole(path, json.dumps(document))
    except OSError as error:
        raise ConfigError(
            f"cannot write the list of images to {path} ({error.strerror}); "
            "name a writable file with --index"
        ) from error


def read_index(path: Path) -> ImageIndex:
    """Read what :func:`write_index` wrote. Raises :class:`ConfigError`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']}, expected {SCHEMA}")
        return ImageIndex(
            tuple(document["classes"]),
            tuple(ImageFile(*row) for row in document["train"]),
            tuple(ImageFile(*row) for row in document["val"]),
            bool(document["checked"]),
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is no list of images ({error}); remove it") from error
