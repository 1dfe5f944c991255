"""Intel GPUs, as ``xpu-smi`` lists them, and the variable that hides some of them.

Tested only on a recorded listing: the project has had no such GPU. Cards are counted, not their
tiles: if torch counts each tile as a device, it finds more than this.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddp.system.own import json


def parse_discovery(listing: str) -> tuple[str, ...]:
    """Read the output of ``xpu-smi discovery -j``: the PCI address of each card, in its order."""
    try:
        devices = json.loads(listing)["device_list"]
        return tuple(device["pci_bdf_address"] for device in devices)
    except (ValueError, KeyError, TypeError):
        return ()


def select_visible(cards: Sequence[str], setting: str | None) -> tuple[str, ...]:
    """Apply ``ZE_AFFINITY_MASK`` (None if unset) to the cards of the machine.

    The mask is a set: its order has no meaning, and ``0.1`` is the second tile of the first card.

    Source: oneAPI Level Zero specification, "Affinity Mask".
    """
    if not setting:
        return tuple(cards)
    visible = {entry.strip().partition(".")[0] for entry in setting.split(",")}
    return tuple(card for index, card in enumerate(cards) if str(index) in visible)
