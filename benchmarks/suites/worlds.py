"""Five worlds beside five tests with the same bodies, in turns; and the runs of a reference.

Tests without ranks run between them in the pytest process, and note the time.
"""

import json
import os
import time

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

TURNS = int(os.environ["BENCHMARK_COUNT"])
FIVE = {"one": 1, "a": 2, "b": 2, "c": 2, "d": 2}


def note(what, seconds):
    with open(os.environ["BENCHMARK_RESULTS"], "a") as file:
        file.write(json.dumps([what, seconds]) + "\n")


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 4)
        self.shift = nn.Parameter(torch.zeros(2))

    def forward(self, tokens):
        x = self.up(tokens[..., None].to(torch.get_default_dtype()).expand(-1, -1, 16) / 64)
        # As a key's bias, the first shift changes nothing.
        weights = (x + self.shift[0]).softmax(-1)
        return self.down(F.relu(x * weights + self.shift[1]))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 128)
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True),) * 2
        )
        self.head = nn.Linear(128, 4)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


MODELS = {"small": Small, "transformer": Transformer}


def train(ddp, kind, optimizer_of):
    """Three steps on 16 sentences, of which each rank has its share."""
    torch.manual_seed(0)
    model = MODELS[kind]()
    optimizer = optimizer_of(model.parameters())
    tokens, wanted = torch.randint(0, 64, (16, 32)), torch.randint(0, 4, (16, 32))
    mine = slice(ddp.rank, None, ddp.world_size)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens[mine]).flatten(0, 1), wanted[mine].flatten()).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= ddp.world_size
        compare(ddp, "gradients", {n: p.grad for n, p in model.named_parameters()})
        optimizer.step()
    compare(ddp, "parameters", model)


def compare(ddp, name, value):
    if ddp.world is not None:
        ddp.across_worlds.assert_close(name, value)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01)


def adam(parameters):
    """An optimizer that makes rounding of a gradient that is zero, a key bias's, as large as
    any."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def define(kind, turn):
    """The tests of one turn."""

    @pytest.mark.ddp(worlds=FIVE)
    def worlds(ddp):
        train(ddp, kind, sgd)

    @pytest.mark.parametrize(
        "world",
        [pytest.param(name, marks=pytest.mark.ddp(world_size=n)) for name, n in FIVE.items()],
    )
    def sizes(ddp, world):
        train(ddp, kind, sgd)

    @pytest.mark.ddp(worlds={"one": 1, "two": 2})
    def rounding(ddp):
        before = time.process_time()
        train(ddp, kind, adam)
        if ddp.world == "one":
            note(f"{kind} reference", time.process_time() - before)

    def clock(what):
        return lambda: note(f"{kind} {what}", time.perf_counter())

    order = [("worlds", worlds), ("sizes", sizes)]
    tests = {f"test_{kind}_{turn}_begin": clock("begin")}
    for name, test in order if turn % 2 else order[::-1]:
        tests[f"test_{kind}_{turn}_{name}"] = test
        tests[f"test_{kind}_{turn}_after_{name}"] = clock(name)
    tests[f"test_{kind}_{turn}_rounding"] = rounding
    tests[f"test_{kind}_{turn}_end"] = clock("end")
    for name, test in tests.items():
        test.__name__ = test.__qualname__ = name
    globals().update(tests)


for kind_of_model in MODELS:
    for number in range(TURNS):
        define(kind_of_model, number)
