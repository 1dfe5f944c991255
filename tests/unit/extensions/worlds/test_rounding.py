"""Monte Carlo arithmetic: what it disturbs, by how much, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ddp.extensions.worlds.ranks.rounding import EXACT, LINEAR, MonteCarloRounding, is_exact

EPS = torch.finfo(torch.float32).eps


def test_a_sum_of_products_moves_by_units_of_its_absolute_values() -> None:
    a, b = torch.randn(7, 4000), torch.randn(4000, 5)
    plain, bound = a @ b, a.abs() @ b.abs()
    with MonteCarloRounding(1, 16.0):
        disturbed = a @ b
    moved = (disturbed - plain).abs()
    assert (moved <= 16.1 * EPS * bound).all()
    assert (moved > 8 * EPS * bound).any()


def test_narrow_results_move_by_one_unit() -> None:
    a = torch.randn(64, 64, dtype=torch.bfloat16)
    with MonteCarloRounding(1, 16.0):
        disturbed = torch.softmax(a, -1)
    relative = ((disturbed - torch.softmax(a, -1)) / torch.softmax(a, -1)).abs()
    assert 0 < relative.max() <= 2 * torch.finfo(torch.bfloat16).eps


def test_narrow_sums_move_by_a_unit_of_their_parts() -> None:
    """Parts on two ranks are rounded one by one, and here nearly cancel."""
    part = torch.randn(256, 64)
    both = torch.cat([part, 1e-3 * torch.randn(256, 64) - part]).to(torch.bfloat16)
    plain = both.sum(0)
    of_ranks = both[:256].sum(0) + both[256:].sum(0)
    with MonteCarloRounding(1, 16.0):
        moved = both.sum(0) - plain
    assert moved.abs().max() > (of_ranks - plain).abs().max() / 2
    assert moved.abs().max() <= 2 * torch.finfo(torch.bfloat16).eps * both.abs().sum(0).max()


def test_sums_that_a_kernel_makes_in_16_bits_move_as_far_as_they_are_wrong() -> None:
    """Half of the rows on each of two ranks is another result by far."""
    torch.manual_seed(0)
    x, gradient = torch.randn(2, 1 << 16, 16).to(torch.bfloat16).unbind()

    def bias_gradient(rows: slice) -> torch.Tensor:
        norm = torch.nn.LayerNorm(16).to(torch.bfloat16)
        norm(x[rows]).backward(gradient[rows])
        assert norm.bias.grad is not None
        return norm.bias.grad

    half = 1 << 15
    plain = bias_gradient(slice(None))
    of_ranks = bias_gradient(slice(half)) + bias_gradient(slice(half, None))
    with MonteCarloRounding(1, 16.0):
        moved = bias_gradient(slice(None)) - plain
    assert moved.abs().max() > (of_ranks - plain).abs().max() / 4


def test_global_generators_are_not_advanced_and_a_seed_repeats() -> None:
    x = torch.randn(4, 4)
    before = torch.get_rng_state()
    results = []
    for seed in (1, 1, 2):
        with MonteCarloRounding(seed):
            results.append(torch.softmax(x @ x, -1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


WRITES = [
    lambda x: x.add_(1),
    lambda x: x.addmm_(x.clone(), x.clone()),
    lambda x: x.copy_(torch.ones(4, 4)),
    lambda x: x.index_add_(0, torch.tensor([0]), torch.ones(1, 4)),
    lambda x: x.zero_(),
    lambda x: torch.mm(x.clone(), x.clone(), out=x),
    lambda x: torch._foreach_mul_([x], 2.0),
    lambda x: x.masked_fill_(x > 0, 1.0),
]


@pytest.mark.parametrize("write", WRITES)
def test_what_an_operator_writes_is_written(write: Any) -> None:
    plain, disturbed = (torch.arange(-8.0, 8.0).reshape(4, 4) for _ in range(2))
    write(plain)
    with MonteCarloRounding(1):
        write(disturbed)
    assert torch.allclose(plain, disturbed, rtol=1e-3)
    assert not torch.equal(disturbed, torch.arange(-8.0, 8.0).reshape(4, 4))


def test_running_statistics_are_kept() -> None:
    norm = torch.nn.BatchNorm1d(3)
    with MonteCarloRounding(1):
        norm(torch.randn(8, 3) + 5)
    assert norm.running_mean is not None
    assert norm.running_mean.min() > 0.1


def test_a_pause_disturbs_nothing() -> None:
    mode = MonteCarloRounding(1)
    x = torch.randn(4, 4)
    with mode, mode.paused():
        assert torch.equal(x @ x, x.mm(x))
    assert mode.disturbed == 0


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.others: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_exact(func) and func._schema.name not in LINEAR:
            self.others.add(func._schema.name)
        return func(*args, **(kwargs or {}))


FACTORIES = {"randint", "empty", "randn"}
"""Operators without a tensor among their inputs: there is nothing to disturb."""
HAVE_AN_ORDER = {
    *("_foreach_norm", "linalg_vector_norm", "_log_softmax", "_log_softmax_backward_data"),
    *("_softmax", "_safe_softmax", "_softmax_backward_data", "nll_loss_forward"),
    *("nll_loss_backward", "native_layer_norm", "native_batch_norm", "native_batch_norm_backward"),
    *("native_group_norm", "mse_loss", "mse_loss_backward", "cumsum", "logsumexp"),
    *("_scaled_dot_product_flash_attention_for_cpu", "max_pool2d_with_indices_backward"),
    "_scaled_dot_product_flash_attention_for_cpu_backward",
}


def test_operators_of_training_programs_are_of_a_known_kind() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    convolutions = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.GroupNorm(2, 4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 5),
    )
    embedding, rms = torch.nn.Embedding(9, 16), torch.nn.RMSNorm(16)
    parameters = [p for m in (layer, convolutions, embedding, rms) for p in m.parameters()]
    seen = _Seen()
    with seen:
        for optimizer in (torch.optim.AdamW(parameters), torch.optim.SGD(parameters, momentum=0.9)):
            x = rms(embedding(torch.randint(0, 9, (4, 6))))
            q = x.reshape(4, 6, 2, 8).transpose(1, 2)
            attended = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
            loss = layer(x).square().mean() + attended.sum() + x.logsumexp(-1).mean()
            gates, chosen = torch.softmax(x[..., :4], -1).topk(2)
            loss = loss + (gates * chosen).cumsum(-1).mean()
            images = convolutions(torch.randn(2, 3, 8, 8))
            loss = loss + torch.nn.functional.cross_entropy(images, torch.tensor([1, 2]))
            loss = loss + torch.nn.functional.mse_loss(images, torch.zeros_like(images))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
    unknown = {name.removeprefix("aten::") for name in seen.others} - HAVE_AN_ORDER - FACTORIES
    assert not unknown, "neither linear, exact nor known to have an order of its own"


def test_the_tables_name_operators_that_there_are() -> None:
    names = {str(schema.name) for schema in torch._C._jit_get_all_schemas()}
    assert sorted(name for name in LINEAR | EXACT if name not in names) == []
