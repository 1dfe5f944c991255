"""The command: what is mended, what is refused, and the exit code of each."""

from pathlib import Path

import pytest
import torch
from ddp_reference.cache import LatentCache
from ddp_reference.cache.__main__ import main
from ddp_reference.cache.repair import check
from torch import Tensor


def test_check_reports_a_sound_cache(cache_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(cache_file)]) == 0
    assert "sound: 21 samples, digest " in capsys.readouterr().out


def test_check_names_key_and_device(cuda_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(cuda_file)]) == 1
    assert f"contaminated cache {cuda_file}, key 'label', device cuda:0" in capsys.readouterr().err


def test_repair_brings_gpu_tensors_home(
    cuda_file: Path, tensors: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repair", str(cuda_file)]) == 0
    assert check(cuda_file) == ()
    with LatentCache.open(cuda_file) as cache:
        assert all(torch.equal(cache.tensor(key), tensor) for key, tensor in tensors.items())
    assert "test data" in capsys.readouterr().out


def test_repair_adopts_views_gradients_and_a_missing_manifest(tmp_path: Path) -> None:
    path, output = tmp_path / "old.pt", tmp_path / "new.pt"
    base = torch.arange(24.0).reshape(4, 6)
    torch.save({"x": base.T, "w": torch.ones(6, 2, requires_grad=True)}, path)
    before = path.read_bytes()
    assert main(["repair", str(path), "--output", str(output)]) == 0
    assert path.read_bytes() == before
    with LatentCache.open(output) as cache:
        assert torch.equal(cache.tensor("x"), base.T)
        assert not cache.tensor("w").requires_grad


@pytest.mark.parametrize("damage", ["meta", "changed", "cut", "uneven"])
def test_repair_refuses_what_it_would_have_to_invent(
    cache_file: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = torch.load(cache_file, weights_only=True)
    if damage == "meta":
        content["tensors"]["half"] = torch.empty(21, device="meta")
    if damage == "changed":
        content["tensors"]["half"][0] += 1
    if damage == "uneven":
        content = {"x": torch.zeros(3), "y": torch.zeros(4)}
    torch.save(content, cache_file)
    if damage == "cut":
        cache_file.write_bytes(cache_file.read_bytes()[:-500])
    before = cache_file.read_bytes()
    assert main(["repair", str(cache_file)]) == 1
    assert cache_file.read_bytes() == before
    assert str(cache_file) in capsys.readouterr().err


def samples(count: int, seed: int) -> dict[str, Tensor]:
    return {"x": torch.full((count, 2), float(seed))}


def test_build_produces_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "built.pt"
    producer = ["--producer", f"{__name__}:samples"]
    assert main(["build", str(path), "--samples", "6", "--seed", "3", *producer]) == 0
    assert "6 samples" in capsys.readouterr().out
    stamp = path.stat().st_mtime_ns
    assert main(["build", str(path), "--samples", "9", *producer]) == 0
    assert "6 samples" in capsys.readouterr().out
    assert path.stat().st_mtime_ns == stamp
    path.write_bytes(b"not a cache")
    assert main(["build", str(path), *producer]) == 1


def test_an_unknown_producer_is_a_wrong_command_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["build", str(tmp_path / "x.pt"), "--producer", "ddp_reference.cache:nobody"])
