"""Shards of WebDataset."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
from ddp_conformance import Case, Loader, Subject
from torch.utils.data import DataLoader

from conformance.ecosystem.frame.parts import Part, parametrize_with_parts

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

wds = pytest.importorskip("webdataset")


def write_shards(case: Case) -> None:
    """One sample in each."""
    for index in range(case.size):
        text = str(index).encode()
        with tarfile.open(case.directory / f"shard-{index:04}.tar", "w") as archive:
            member = tarfile.TarInfo(f"{index}.cls")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))


def loader(case: Case, **options: Any) -> Any:
    shards = sorted(map(str, case.directory.glob("*.tar")))
    data = wds.WebDataset(shards, shardshuffle=False, **options).decode().to_tuple("cls")
    return DataLoader(data, batch_size=2, num_workers=case.num_workers)


def webdataset_split(case: Case) -> Any:
    return loader(case, nodesplitter=wds.split_by_node, empty_check=False)


def webdataset_default(case: Case) -> Any:
    return loader(case)


def labels(batch: Any) -> tuple[int, ...]:
    return tuple(map(int, batch[0]))


REFUSAL = "need to add an explicit nodesplitter"

PARTS = [
    Part(
        Loader(webdataset_split, {"iterable", "uneven"}, indices=labels, prepare=write_shards),
        "`WebDataset(shards, nodesplitter=split_by_node, empty_check=False)`",
    ),
    Part(
        Loader(webdataset_default, {"iterable"}, indices=labels, prepare=write_shards),
        "`WebDataset(shards)`",
        refuses={"SMP-01": REFUSAL, "SMP-02": REFUSAL, "SMP-05": REFUSAL},
    ),
]


@parametrize_with_parts(PARTS)
def test_webdataset(subject: Subject, check: BoundCheck) -> None:
    check(subject)
