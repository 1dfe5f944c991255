"""The mapping: shared by every process, protected from readers, gone with its last reader."""

import contextlib
import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from ddp_reference.cache import SHARED_MEMORY, CacheError, LatentCache
from ddp_reference.cache.latent_cache import copy_to_segment, open_file
from torch import Tensor


@pytest.fixture(params=[SHARED_MEMORY, None], ids=["segment", "file"])
def cache(request: pytest.FixtureRequest, cache_file: Path) -> Iterator[LatentCache]:
    with LatentCache.open(cache_file, segment_dir=request.param) as cache:
        yield cache


def test_it_holds_what_was_written(cache: LatentCache, tensors: dict[str, Tensor]) -> None:
    assert len(cache) == 21
    assert cache.keys == tuple(tensors)
    assert all(torch.equal(cache.tensor(key), tensor) for key, tensor in tensors.items())
    assert all(torch.equal(cache[-1][key], tensor[-1]) for key, tensor in tensors.items())
    with pytest.raises(IndexError, match="sample 21 of a cache of 21"):
        cache[21]


def test_a_sample_normalised_in_place_spoils_nobody_elses(cache: LatentCache) -> None:
    original = cache.tensor("latent")[3].clone()
    cache[3]["latent"].sub_(100)
    assert torch.equal(cache[3]["latent"], original)
    cache.verify()


def test_a_reader_that_writes_is_found_out_by_key(cache: LatentCache) -> None:
    cache.tensor("half")[0].add_(1)
    with pytest.raises(CacheError, match=r"key 'half'.*digest"):
        cache.verify()


def test_no_write_reaches_the_file(cache: LatentCache, cache_file: Path) -> None:
    before = cache_file.read_bytes()
    cache.tensor("latent").zero_()
    assert cache_file.read_bytes() == before


def test_a_segment_written_by_one_reader_is_seen_by_all(cache_file: Path) -> None:
    with LatentCache.open(cache_file) as cache:
        other = LatentCache.attach(cache.ticket, adopt=True)
        other.tensor("label")[0] = 99
        assert cache.tensor("label")[0] == 99
        other.close()


def mapped_files(folder: Path) -> set[str]:
    maps = psutil.Process().memory_maps()
    return {m.path for m in maps if m.path.startswith(f"{folder}/")}


@pytest.fixture
def own_memory() -> Iterator[Path]:
    """A folder of shared memory in which no other process of the machine makes files."""
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        yield Path(folder)


def test_nothing_is_left_in_shared_memory(cache_file: Path, own_memory: Path) -> None:
    cache = LatentCache.open(cache_file, segment_dir=own_memory)
    assert not [*own_memory.iterdir()]
    assert len(mapped_files(own_memory)) == 1
    cache.close()
    assert not mapped_files(own_memory)


def test_closing_gives_the_descriptor_back(cache_file: Path) -> None:
    before = descriptors()
    for _ in range(3):
        LatentCache.open(cache_file).close()
        LatentCache.open(cache_file, segment_dir=None).close()
    assert descriptors() - before == set()


def descriptors() -> set[tuple[str, str]]:
    """What this process has open: the number, and the file.

    Not only how many, of which the garbage of other tests may close some at any time.
    """
    found = set()
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # the one that listed the others
            found.add((entry.name, os.readlink(entry)))
    return found


def test_a_cache_that_is_replaced_goes_on_showing_what_was_checked(
    cache: LatentCache, cache_file: Path, tensors: dict[str, Tensor]
) -> None:
    replacement = cache_file.with_name("next.pt")
    replacement.write_bytes(b"another file")
    replacement.replace(cache_file)
    assert torch.equal(cache.tensor("latent"), tensors["latent"])
    again = LatentCache.attach(cache.ticket, adopt=True)
    assert torch.equal(again.tensor("latent"), tensors["latent"])
    again.close()


def test_too_small_a_shared_memory_is_reported_with_both_sizes(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(1 << 42)
    source = open_file(sparse)
    with pytest.raises(OSError, match=rf"bytes free, the cache needs {1 << 42}: .*segment_dir"):
        copy_to_segment(source, SHARED_MEMORY)
    source.close()


def test_a_pickle_of_the_cache_holds_no_data(cache: LatentCache) -> None:
    assert len(pickle.dumps(cache)) < 4096
    copy = pickle.loads(pickle.dumps(cache))
    assert copy.digest == cache.digest
    copy.verify()
