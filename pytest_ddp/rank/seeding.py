"""Random number generators of a rank: seeded before every test."""

from __future__ import annotations

import random
import sys

import torch


def seed_everything(seed: int) -> None:
    """Seed python, torch (all devices) and, where it is imported, NumPy's global generator.

    Ranks are given different seeds by default: forked ranks would otherwise share
    their state, and code that forgets to synchronise its draws would look right.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
