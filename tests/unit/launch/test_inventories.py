"""Recorded listings of real machines: which GPUs there are, which are leased, what a rank gets.

``inventories.json`` names the public source of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import pytest

from pytest_ddp.launch import gpu_vendors, gpus
from pytest_ddp.launch.gpus import Build
from pytest_ddp.settings.layout import OneMachine
from pytest_ddp.settings.mark import Mark
from pytest_ddp.settings.options import Options, Output, StartMethod
from pytest_ddp.settings.plan import LaunchPlan, make_plan

INVENTORIES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("inventories.json").read_text()
)
VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
)
Machine: TypeAlias = Callable[..., None]
H100S = "8 x H100"
MIXED, CUT = "A100, the first cut in four", "A100 cut in seven"
MI210S, PARTS = "8 x MI210", "8 x MI308X, each in four partitions"
XPU = "an Intel data centre GPU"
UNLIKE = "two unlike GPUs, in a container"
FOUR, TWO = "a container that was given four V100s", "the same container with two left"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Make this the machine of a recorded listing, with a torch of some build."""
    tools, driver, nodes = tmp_path / "bin", tmp_path / "driver", tmp_path / "nodes"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(gpus, "_SMI_OF_WSL", str(tools / "none"))
    monkeypatch.setattr(gpus, "_DRIVER", driver)
    monkeypatch.setattr(gpu_vendors, "_NODES", nodes)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def become(
        name: str, build: Build = Build.CUDA, hidden: tuple[int, ...] = (), **variables: str
    ) -> None:
        recorded = INVENTORIES[name]
        monkeypatch.setattr(gpus, "torch_build", lambda: build)
        for tool in recorded.keys() & {"nvidia-smi", "xpu-smi"}:
            _write_tool(tools / tool, recorded[tool])
        for address, lines in recorded.get("driver", {}).items():
            driver.joinpath(address).mkdir(parents=True)
            driver.joinpath(address, "information").write_text("\n".join(lines))
        for number, properties in enumerate(recorded.get("kfd", ())):
            node = nodes / str(number)
            node.mkdir(parents=True)
            file = node / "properties"
            if number in hidden:
                file.mkdir()  # what cannot be read, also by root, who runs tests in containers
            else:
                file.write_text(properties.replace(" ", "\n").replace("=", " ") + "\n")
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)

    _forget()
    yield become
    _forget()


def _write_tool(path: Path, printed: dict[str, Any]) -> None:
    text = "\n".join(printed["stdout"])
    path.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{text}\nEND\nexit {printed['status']}\n")
    path.chmod(0o755)


def _forget() -> None:
    gpus.physical_gpus.cache_clear()
    gpus._intel_cards.cache_clear()


def uuids(name: str, prefix: str = "GPU-") -> list[str]:
    lines = INVENTORIES[name]["nvidia-smi"]["stdout"]
    found = [line.partition("(UUID: ")[2].rstrip(")") for line in lines]
    return [uuid for uuid in found if uuid.startswith(prefix)]


def addresses(count: int) -> list[str]:
    """The partitions of the MI308Xs, in their order."""
    places = [
        (0, 0x0A),
        (0, 0x80),
        (0, 0xA4),
        (0, 0xC8),
        (1, 0x0B),
        (1, 0x81),
        (1, 0xA5),
        (1, 0xC9),
    ]
    parts = [f"{d:04x}:{bus:02x}:00.{part}" for d, bus in places for part in range(4)]
    return parts[:count]


MI210_ADDRESSES = [f"0000:{bus}:00.0" for bus in ("63", "43", "03", "26", "e3", "c3", "83", "a3")]


@pytest.mark.parametrize(
    ("name", "build", "variables", "expected"),
    [
        (H100S, Build.CUDA, {}, uuids(H100S)),
        (H100S, Build.CUDA, {"CUDA_VISIBLE_DEVICES": "6,2"}, [uuids(H100S)[i] for i in (6, 2)]),
        (H100S, Build.CUDA, {"CUDA_VISIBLE_DEVICES": "GPU-f65a6"}, uuids(H100S)[7:]),
        (H100S, Build.CUDA, {"HIP_VISIBLE_DEVICES": "0"}, uuids(H100S)),
        (H100S, Build.ROCM, {}, []),
        (H100S, Build.XPU, {}, []),
        ("2 x Quadro RTX 4000", Build.CUDA, {}, uuids("2 x Quadro RTX 4000")),
        (UNLIKE, Build.CUDA, {}, uuids(UNLIKE)),
        (UNLIKE, Build.CUDA, {"CUDA_VISIBLE_DEVICES": "1"}, uuids(UNLIKE)[1:]),
        (FOUR, Build.CUDA, {}, uuids(FOUR)),
        # A container numbers its GPUs anew, and a name of the machine's is nobody's there.
        (TWO, Build.CUDA, {"CUDA_VISIBLE_DEVICES": "1"}, uuids(FOUR)[3:]),
        (TWO, Build.CUDA, {"CUDA_VISIBLE_DEVICES": uuids(FOUR)[1]}, []),
        ("a container that was given none", Build.CUDA, {}, []),
        # A process that sees an instance sees nothing else.
        (MIXED, Build.CUDA, {}, uuids(MIXED, "MIG-")[:1]),
        (MIXED, Build.CUDA, {"CUDA_VISIBLE_DEVICES": "1,2,3"}, uuids(MIXED)[1:]),
        (MIXED, Build.CUDA, {"CUDA_VISIBLE_DEVICES": "3,0"}, uuids(MIXED)[3:]),
        (CUT, Build.CUDA, {}, uuids(CUT, "MIG-")[:1]),
        (
            CUT,
            Build.CUDA,
            {"CUDA_VISIBLE_DEVICES": uuids(CUT, "MIG-")[4]},
            uuids(CUT, "MIG-")[4:5],
        ),
        ("driver and library of two versions", Build.CUDA, {}, []),
        ("WSL without its driver", Build.CUDA, {}, []),
        (
            "H100 by the driver's files",
            Build.CUDA,
            {},
            ["GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b"],
        ),
        ("nothing", Build.CUDA, {}, []),
        ("nothing", Build.ROCM, {"ROCR_VISIBLE_DEVICES": "0"}, []),
        ("nothing", Build.XPU, {"ZE_AFFINITY_MASK": "0"}, []),
        (MI210S, Build.ROCM, {}, MI210_ADDRESSES),
        (MI210S, Build.CUDA, {}, []),
        (MI210S, Build.ROCM, {"ROCR_VISIBLE_DEVICES": "2,3"}, MI210_ADDRESSES[2:4]),
        (
            MI210S,
            Build.ROCM,
            {"HIP_VISIBLE_DEVICES": "7,0"},
            [*MI210_ADDRESSES[7:], *MI210_ADDRESSES[:1]],
        ),
        (MI210S, Build.ROCM, {"CUDA_VISIBLE_DEVICES": "1"}, MI210_ADDRESSES[1:2]),
        (
            MI210S,
            Build.ROCM,
            {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "5,6"},
            MI210_ADDRESSES[1:2],
        ),
        (
            MI210S,
            Build.ROCM,
            {"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "1,2,3"},
            MI210_ADDRESSES[5:7],
        ),
        (MI210S, Build.ROCM, {"ROCR_VISIBLE_DEVICES": "GPU-1901ead3a2ecd4a6"}, MI210_ADDRESSES[:1]),
        (MI210S, Build.ROCM, {"HIP_VISIBLE_DEVICES": ""}, []),
        (MI210S, Build.ROCM, {"HIP_VISIBLE_DEVICES": "0,0"}, []),
        (MI210S, Build.ROCM, {"HIP_VISIBLE_DEVICES": "0,-1,2"}, MI210_ADDRESSES[:1]),
        (PARTS, Build.ROCM, {}, addresses(32)),
        # All of its partitions have a GPU's identifier; what ROCm makes of that, nobody has tried.
        (PARTS, Build.ROCM, {"ROCR_VISIBLE_DEVICES": "GPU-084cafeae17e7696"}, addresses(4)),
        (XPU, Build.XPU, {}, ["0000:4d:00.0"]),
        (XPU, Build.XPU, {"ZE_AFFINITY_MASK": "0.1"}, ["0000:4d:00.0"]),
        (XPU, Build.XPU, {"ZE_AFFINITY_MASK": "1"}, []),
        (XPU, Build.CUDA, {}, []),
    ],
)
def test_which_gpus_there_are(
    machine: Machine, name: str, build: Build, variables: dict[str, str], expected: list[str]
) -> None:
    machine(name, build, **variables)
    assert list(gpus.visible_devices()) == expected
    assert gpus.count_gpus() == len(expected)


def test_a_container_sees_the_amd_gpus_that_it_was_given(machine: Machine) -> None:
    machine(MI210S, Build.ROCM, hidden=(2, 3, 5, 6, 7, 8))
    assert list(gpus.visible_devices()) == [MI210_ADDRESSES[2], MI210_ADDRESSES[7]]


@pytest.mark.parametrize("name", INVENTORIES)
def test_a_torch_for_the_cpu_has_none(machine: Machine, name: str) -> None:
    machine(name, Build.CPU)
    assert gpus.count_gpus() == 0


@pytest.mark.parametrize(
    ("name", "build", "kind"),
    [(H100S, Build.CUDA, "cuda"), (MI210S, Build.ROCM, "cuda"), (XPU, Build.XPU, "xpu")],
)
def test_what_torch_calls_them(machine: Machine, name: str, build: Build, kind: str) -> None:
    machine(name, build)
    assert gpus.device_kind() == kind


def planned(mark: Mark) -> LaunchPlan:
    """What a test gets on this machine."""
    options = Options("auto", 2, 300.0, StartMethod.FORK, False, 0, Output.FAILED)
    item = cast(pytest.Item, SimpleNamespace(nodeid="test_a.py::test_a"))
    return make_plan(item, mark, options, OneMachine(gpus.count_gpus(), gpus.device_kind()))


def mark(world_size: Any, **arguments: Any) -> Mark:
    return Mark((world_size,), listed=False, **arguments)


@pytest.mark.parametrize(
    ("name", "build", "variables", "asked", "backend", "leased"),
    [
        (H100S, Build.CUDA, {}, mark(4), "nccl", (0, 1, 2, 3)),
        (H100S, Build.CUDA, {}, mark("gpus"), "nccl", tuple(range(8))),
        (H100S, Build.CUDA, {"CUDA_VISIBLE_DEVICES": "3"}, mark(4), "gloo", None),
        (
            H100S,
            Build.CUDA,
            {"CUDA_VISIBLE_DEVICES": "3"},
            mark(4, device="cuda", ranks_per_gpu=4),
            "gloo",
            (0, 0, 0, 0),
        ),
        (UNLIKE, Build.CUDA, {}, mark(2), "nccl", (0, 1)),
        (TWO, Build.CUDA, {}, mark(4), "gloo", None),
        (
            "a container that was given none",
            Build.CUDA,
            {},
            mark(1, backend="nccl"),
            "nccl",
            "skip",
        ),
        (CUT, Build.CUDA, {}, mark(2, ranks_per_gpu=2), "gloo", (0, 0)),
        (MIXED, Build.CUDA, {}, mark(2), "gloo", None),
        (MIXED, Build.CUDA, {"CUDA_VISIBLE_DEVICES": "1,2,3"}, mark(3), "nccl", (0, 1, 2)),
        (MI210S, Build.ROCM, {}, mark(2), "nccl", (0, 1)),
        (PARTS, Build.ROCM, {}, mark("gpus"), "nccl", tuple(range(32))),
        (XPU, Build.XPU, {}, mark(1, backend="xccl"), "xccl", (0,)),
        (XPU, Build.XPU, {}, mark(1), "gloo", None),
        (
            XPU,
            Build.XPU,
            {},
            mark(2, device="xpu", ranks_per_gpu=1, backend="gloo"),
            "gloo",
            "skip",
        ),
        ("driver and library of two versions", Build.CUDA, {}, mark(2), "gloo", None),
        (
            "driver and library of two versions",
            Build.CUDA,
            {},
            mark(2, backend="nccl"),
            "nccl",
            "skip",
        ),
    ],
)
def test_what_a_rank_gets(
    machine: Machine,
    tmp_path: Path,
    name: str,
    build: Build,
    variables: dict[str, str],
    asked: Mark,
    backend: str,
    leased: Any,
) -> None:
    machine(name, build, **variables)
    plan = planned(asked)
    assert plan.backend == backend
    if leased == "skip":
        assert plan.skip is not None
        return
    assert plan.skip is None
    if leased is None:
        assert plan.devices is None
        return
    folder = tmp_path / "locks"
    ranks = len(plan.devices or ())
    with gpus.lease(ranks, folder, ranks_per_gpu=plan.ranks_per_gpu, limit=0) as got:
        assert got == leased == plan.devices
        locks = {file.stem for file in folder.glob("*.lock")} - {"queue"}
    taken = {gpus.visible_devices()[index] for index in leased}
    assert locks == {gpu.replace(":", "_") for gpu in taken}


def test_each_inventory_names_its_source_and_is_used() -> None:
    text = Path(__file__).read_text()
    for name, recorded in INVENTORIES.items():
        assert recorded["source"]
        assert json.dumps(name, ensure_ascii=False) in text
