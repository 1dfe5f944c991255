"""AMD GPUs, as the kernel's driver lists them for ROCm, and the variables that hide some of them.

Tested only on recorded listings: the project has had no such GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddp.system.stdlib import json

_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """One GPU, or one partition of it."""

    uuid: str
    """``GPU-`` and sixteen hexadecimal digits, the same for all partitions of a GPU; zeros if the
    GPU has no identifier."""
    name: str
    """The GPU's PCI address, which differs between partitions."""


def physical_gpus() -> tuple[AmdGpu, ...]:
    """The GPUs in the order in which ROCm enumerates them; none without its driver."""
    nodes = sorted(_NODES.glob("[0-9]*"), key=lambda node: int(node.name))
    return tuple(gpu for node in nodes for gpu in _read(node))


def _read(node: Path) -> Iterator[AmdGpu]:
    try:
        text = node.joinpath("properties").read_text()
    except OSError:
        return  # in a container the kernel does not show the GPUs of others
    found = re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)
    properties = {name: int(value) for name, value in found}
    if properties.get("simd_count", 0) > 0:  # CPUs are nodes too
        yield AmdGpu(f"GPU-{properties.get('unique_id', 0):016x}", _address(properties))


def _address(properties: Mapping[str, int]) -> str:
    place = properties.get("location_id", 0)
    bus, device, function = place >> 8 & 0xFF, place >> 3 & 0x1F, place & 7
    return f"{properties.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function}"


def select_visible_amd(gpus: Sequence[AmdGpu], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Apply the variables to the GPUs of the machine, as torch counts them.

    ``ROCR_VISIBLE_DEVICES`` is applied first; to its result ``HIP_VISIBLE_DEVICES`` is applied or,
    if that is not set, ``CUDA_VISIBLE_DEVICES``. Each is a list of numbers or UUIDs, which ends at
    the first entry that matches no GPU.

    Source: ROCm's documentation, "GPU isolation techniques"; ``torch.cuda._parse_visible_devices``.
    """
    left = _chosen(gpus, environment.get("ROCR_VISIBLE_DEVICES"))
    hip = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    return tuple(gpu.name for gpu in _chosen(left, hip))


def _chosen(gpus: Sequence[AmdGpu], setting: str | None) -> Sequence[AmdGpu]:
    if setting is None:
        return gpus
    chosen: list[AmdGpu] = []
    for entry in map(str.strip, setting.split(",")):
        is_match = _matcher(entry)
        matches = [gpu for index, gpu in enumerate(gpus) if is_match(index, gpu)]
        if not matches:
            break
        if any(gpu in chosen for gpu in matches):
            return ()
        chosen += matches
    return chosen


def _matcher(entry: str) -> Callable[[int, AmdGpu], bool]:
    if entry.lower().startswith("gpu-"):
        return lambda index, gpu: gpu.uuid == entry.lower().replace("gpu-", "GPU-")
    return lambda index, gpu: entry == str(index)


# ------------------------------------------------------------------
# Intel GPUs, as ``xpu-smi`` lists them, and the variable that hides some of them.
#
# Tested only on a recorded listing: the project has had no such GPU. Cards are counted, not their
# tiles: if torch counts each tile as a device, it finds more than this.


def parse_discovery(listing: str) -> tuple[str, ...]:
    """Read the output of ``xpu-smi discovery -j``: the PCI address of each card, in its order."""
    try:
        devices = json.loads(listing)["device_list"]
        return tuple(device["pci_bdf_address"] for device in devices)
    except (ValueError, KeyError, TypeError):
        return ()


def select_visible_intel(cards: Sequence[str], setting: str | None) -> tuple[str, ...]:
    """Apply ``ZE_AFFINITY_MASK`` (None if unset) to the cards of the machine.

    The mask is a set: its order has no meaning, and ``0.1`` is the second tile of the first card.

    Source: oneAPI Level Zero specification, "Affinity Mask".
    """
    if not setting:
        return tuple(cards)
    visible = {entry.strip().partition(".")[0] for entry in setting.split(",")}
    return tuple(card for index, card in enumerate(cards) if str(index) in visible)
