"""Find and check all images once, before any rank reads one.

A file that cannot be decoded would otherwise stop one rank in the middle of an epoch,
with the others waiting in a collective. Decoding everything is the only sure check
and happens once per file: a later run looks at sizes and times alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ddp_reference.resnet.agreement import ConfigError
from ddp_reference.resnet.images import CorruptImageError, load_image
from ddp_reference.resnet.index import ImageFile, ImageIndex, read_index, scan, write_index

SHOWN = 3
"""Corrupt files that an error names; the rest are counted."""
CHUNK = 4096
"""Files handed to the threads at once: a future for each image of ImageNet takes a gigabyte."""


def prepare_index(root: Path, path: Path, check: bool) -> ImageIndex:
    """List the images below ``root`` and publish the list at ``path``, unless it is there already.

    With ``check``, every image that was not checked before is decoded. Raises
    :class:`ConfigError` for an unusable folder and for images that cannot be decoded.
    """
    found, known = scan(root), _known(path)
    if check:
        check_images(root, _unchecked(found, known))
    index = replace(found, checked=check)
    if index != known:
        write_index(path, index)
    return index


def _known(path: Path) -> ImageIndex | None:
    """The list of an earlier run; a damaged one is made again."""
    try:
        return read_index(path)
    except ConfigError:
        return None


def _unchecked(found: ImageIndex, known: ImageIndex | None) -> list[ImageFile]:
    checked = {*known.train, *known.val} if known is not None and known.checked else set()
    return [file for file in (*found.train, *found.val) if file not in checked]


def check_images(root: Path, files: Sequence[ImageFile]) -> None:
    """Decode ``files``; raise one :class:`ConfigError` that names those that fail."""
    problems = list(_problems(root, files))
    if problems:
        shown = "; ".join(problems[:SHOWN])
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise ConfigError(f"{len(problems)} of {len(files)} images: {shown}{more}")


def _problems(root: Path, files: Sequence[ImageFile]) -> Iterator[str]:
    paths = (root / file.path for file in files)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        while chunk := list(islice(paths, CHUNK)):
            yield from (text for text in threads.map(_problem, chunk) if text is not None)


def _problem(path: Path) -> str | None:
    try:
        load_image(path)
    except CorruptImageError as error:
        return str(error)
    return None
