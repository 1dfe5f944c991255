"""The yardstick of a session's start: pytest, and torch imported once."""

import os

import pytest
import torch

COUNT = int(os.environ["BENCHMARK_COUNT"])


@pytest.mark.parametrize("number", range(COUNT))
def test_one(number):
    assert torch.ones(1).item() == 1
