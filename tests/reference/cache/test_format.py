"""A cache file is sound or refused, with the file, the key and the device in the message."""

import pickle
from pathlib import Path

import pytest
import torch
from ddp_reference.cache import CacheError, LatentCache, write
from ddp_reference.cache.format import layout_problems, read_layout
from torch import Tensor


def kinds(error: CacheError) -> list[str]:
    return [problem.kind for problem in error.problems]


def test_a_written_cache_has_no_problem_and_is_an_ordinary_archive(
    cache_file: Path, tensors: dict[str, Tensor]
) -> None:
    assert layout_problems(read_layout(cache_file)) == ()
    loaded = torch.load(cache_file, weights_only=True)["tensors"]
    assert {key: t.dtype for key, t in loaded.items()} == {k: t.dtype for k, t in tensors.items()}
    assert all(torch.equal(loaded[key], tensor) for key, tensor in tensors.items())


def test_cuda_tensors_are_refused_by_file_key_and_device_without_a_gpu(cuda_file: Path) -> None:
    with pytest.raises(CacheError) as caught:
        LatentCache.open(cuda_file)
    found = [p for p in caught.value.problems if p.kind == "contaminated"]
    assert {(p.file, p.key, p.device) for p in found} == {
        (cuda_file, key, "cuda:0") for key in ("latent", "label", "half")
    }
    assert f"{cuda_file}, key 'latent', device cuda:0" in str(caught.value)
    assert "cache repair" in str(caught.value)


def test_a_meta_tensor_in_a_file_is_refused(tmp_path: Path, cache_file: Path) -> None:
    content = torch.load(cache_file, weights_only=True)
    content["tensors"]["label"] = torch.empty(21, device="meta")
    path = tmp_path / "meta.pt"
    torch.save(content, path)
    with pytest.raises(CacheError, match=r"meta\.pt, key 'label', device meta: .* rebuild"):
        LatentCache.open(path)


def test_a_tensor_off_the_cpu_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "new.pt"
    with pytest.raises(CacheError, match="key 'z', device meta"):
        write(path, {"x": torch.zeros(3), "z": torch.zeros(3, device="meta")}, "test")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kept", [0, 3, 60, 0.5, 0.99, -1])
def test_a_truncated_file_is_refused_at_every_length(cache_file: Path, kept: float) -> None:
    data = cache_file.read_bytes()
    size = int(len(data) * kept) if 0 < kept < 1 else int(kept) % len(data)
    cache_file.write_bytes(data[:size])
    with pytest.raises(CacheError, match=str(cache_file)) as caught:
        LatentCache.open(cache_file)
    assert set(kinds(caught.value)) <= {"truncated", "foreign"}
    if size >= 60 and size < len(data) - 22:  # the directory's end record is 22 bytes
        assert kinds(caught.value) == ["truncated"]


@pytest.mark.parametrize("content", [{"x": torch.zeros(3)}, [1, 2], {"a": 1}, torch.zeros(2)])
def test_an_archive_of_something_else_is_foreign(tmp_path: Path, content: object) -> None:
    path = tmp_path / "other.pt"
    torch.save(content, path)
    with pytest.raises(CacheError) as caught:
        LatentCache.open(path)
    assert kinds(caught.value) == ["foreign"]


def test_a_file_of_another_version_is_foreign(tmp_path: Path, cache_file: Path) -> None:
    content = torch.load(cache_file, weights_only=True)
    content["manifest"]["version"] = 2
    torch.save(content, tmp_path / "next.pt")
    with pytest.raises(CacheError, match="version 1"):
        LatentCache.open(tmp_path / "next.pt")


class Planted:
    """Unpickling this would create the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_pickle_is_foreign_and_is_not_executed(tmp_path: Path) -> None:
    planted = tmp_path / "executed"
    path = tmp_path / "evil.pt"
    torch.save({"tensors": {"x": Planted(planted)}}, path)
    with pytest.raises(CacheError, match="foreign"):
        LatentCache.open(path)
    path.write_bytes(pickle.dumps(Planted(planted)))
    with pytest.raises(CacheError, match="foreign"):
        LatentCache.open(path)
    assert not planted.exists()


def test_no_file_is_distinguished_from_a_bad_file(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="build it first") as caught:
        LatentCache.open(tmp_path / "none.pt")
    assert kinds(caught.value) == ["missing"]


def test_changed_bytes_are_found_by_the_digest_with_the_key(cache_file: Path) -> None:
    entry = read_layout(cache_file).entries["label"]
    assert entry.offset is not None
    data = bytearray(cache_file.read_bytes())
    data[entry.offset] ^= 1
    cache_file.write_bytes(data)
    with pytest.raises(CacheError, match=r"key 'label'.*digest") as caught:
        LatentCache.open(cache_file)
    assert kinds(caught.value) == ["modified"]


@pytest.mark.parametrize(
    "bad",
    [
        {"x": torch.zeros(3), "y": torch.zeros(4)},
        {"x": torch.zeros(3), "y": torch.tensor(1.0)},
        {"x": torch.zeros(0, 2)},
        {},
    ],
)
def test_samples_must_be_counted_alike(tmp_path: Path, bad: dict[str, Tensor]) -> None:
    with pytest.raises(CacheError, match="first dimensions"):
        write(tmp_path / "bad.pt", bad, "test")


def test_a_writer_that_dies_halfway_leaves_the_old_file_and_nothing_else(
    cache_file: Path, tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cache_file.read_bytes()

    def save_half(content: object, file: object) -> None:
        file.write(b"PK\x03\x04")  # type: ignore[attr-defined]
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", save_half)
    with pytest.raises(OSError, match="disk full"):
        write(cache_file, tensors, "second")
    assert cache_file.read_bytes() == before
    assert list(cache_file.parent.iterdir()) == [cache_file]


def test_a_view_is_stored_without_the_rest_of_its_base(tmp_path: Path) -> None:
    base = torch.zeros(1000, 1000)
    write(tmp_path / "view.pt", {"x": base[:4, :4]}, "view")
    assert (tmp_path / "view.pt").stat().st_size < 10_000


def test_the_error_travels_between_processes(cache_file: Path) -> None:
    cache_file.write_bytes(b"")
    with pytest.raises(CacheError) as caught:
        LatentCache.open(cache_file)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.problems == caught.value.problems
    assert str(copy) == str(caught.value)
