"""Models, data and small parts of training that the programs share."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

VOCABULARY, LENGTH = 17, 8


class MLP(nn.Module):
    def __init__(self, out=4):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, out)

    def forward(self, x):
        return self.head(self.norm(x + self.down(F.relu(self.up(x)))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.attention, self.between = nn.LayerNorm(16), Attention(), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.down(F.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Experts(nn.Module):
    """Four experts with a router; a rank of several has some of them, and tokens of its own."""

    def __init__(self, rank=0, size=1):
        super().__init__()
        self.size = size
        self.router, self.head = nn.Linear(16, 4), nn.Linear(16, 4)
        experts = [nn.Linear(16, 16) for _ in range(4)]
        mine = range(4)[rank * 4 // size : (rank + 1) * 4 // size]
        self.experts = nn.ModuleDict({str(number): experts[number] for number in mine})

    def forward(self, x):
        gates, chosen = self.router(x).softmax(-1).topk(2)
        weights = torch.zeros_like(x[:, :4]).scatter(1, chosen, gates)
        if self.size > 1:
            x, weights = Gathered.apply(x), Gathered.apply(weights)
        mixed = sum(
            expert(x) * weights[:, int(number), None] for number, expert in self.experts.items()
        )
        return self.head(Scattered.apply(mixed) if self.size > 1 else mixed)


class Gathered(torch.autograd.Function):
    """The rows of all ranks, in the order of ranks."""

    @staticmethod
    def forward(ctx, mine):
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        whole = gradient.clone()
        dist.all_reduce(whole)
        return whole.chunk(dist.get_world_size())[dist.get_rank()]


class Scattered(torch.autograd.Function):
    """This rank's rows of the sum of all ranks' tensors."""

    @staticmethod
    def forward(ctx, partial):
        whole = partial.clone()
        dist.all_reduce(whole)
        return whole.chunk(dist.get_world_size())[dist.get_rank()].clone()

    @staticmethod
    def backward(ctx, gradient):
        return Gathered.forward(ctx, gradient)


class Copied(torch.autograd.Function):
    """What all ranks have, on the way into a part of each; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        whole = gradient.clone()
        dist.all_reduce(whole)
        return whole


class Summed(torch.autograd.Function):
    """The sum of all ranks' parts, on the way into what all ranks have."""

    @staticmethod
    def forward(ctx, partial):
        whole = partial.clone()
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def labelled(samples, classes=4):
    """Inputs of an MLP, and classes."""
    return torch.randn(samples, 16), torch.randint(0, classes, (samples,))


def sentences(samples):
    """Tokens, and those that follow."""
    tokens = torch.randint(0, VOCABULARY, (samples, LENGTH + 1))
    return tokens[:, :-1], tokens[:, 1:]


def cross_entropy(logits, wanted):
    return F.cross_entropy(logits.flatten(0, -2), wanted.flatten())


def cast(model, dtype):
    """Return a model in a dtype; for float32 unchanged, as a model follows torch's default
    dtype."""
    return model if dtype == "float32" else model.to(getattr(torch, dtype))


def like(x, model):
    """A tensor in the dtype of a model."""
    return x.to(next(model.parameters()).dtype)


def averaged(ddp, model):
    """The mean of the ranks' gradients."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= ddp.world_size


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def train(ddp, model, optimizer, batches, loss_of=cross_entropy):
    """Steps of a model whose wrapper reduces gradients, each rank with its own samples."""
    for x, y in batches:
        optimizer.zero_grad()
        x, y = x[ddp.rank :: ddp.world_size], y[ddp.rank :: ddp.world_size]
        loss = loss_of(model(x), y)
        loss.backward()
        ddp.across_worlds.assert_close("gradients", gradients(model))
        optimizer.step()
    ddp.across_worlds.assert_close("parameters", model)
