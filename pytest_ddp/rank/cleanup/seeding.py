"""Random number generators of a rank, which are seeded before every test."""

from __future__ import annotations

import argparse
import sys

import torch

from pytest_ddp.system.stdlib import random


def unseed() -> None:
    """Seed at random, as in a fresh interpreter and not as in other ranks: for draws at import."""
    random.seed()
    torch.default_generator.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def seed_everything(seed: int) -> None:
    """Seed python, torch (CPU and GPUs) and, where it is imported, NumPy's global generator.

    Ranks have different seeds by default: forked ranks would otherwise share their generators'
    state, and code that forgets to synchronise random numbers would seem correct.
    """
    random.seed(seed)
    # Not torch.manual_seed: without CUDA it formats a stack for every call, 1 ms.
    torch.default_generator.manual_seed(seed)
    for accelerator in (torch.cuda, torch.xpu):
        if accelerator.is_initialized():
            accelerator.manual_seed_all(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


class Reseeder:
    """Makes pytest-randomly seed each rank differently, as this plugin does.

    pytest-randomly seeds again before setup, call and teardown of each test, with the same number
    in all processes.
    """

    def __init__(self, option: argparse.Namespace) -> None:
        self._option = option
        self._base: object = getattr(option, "randomly_seed", None)

    def begin(self, seed: int) -> None:
        """Derive pytest-randomly's seed for the next test from its own base and the rank's seed."""
        if isinstance(self._base, int):
            self._option.randomly_seed = self._base + seed
