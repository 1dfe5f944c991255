"""The equation, the models, and that each of the four stages learns."""

from pathlib import Path

import pytest
import torch
from ddp_reference.training import lifecycle
from ddp_reference.training.burgers import LAG, BurgersRing, derivative, grid, latent_pairs
from ddp_reference.training.config import TrainConfig
from ddp_reference.training.lifecycle import run
from ddp_reference.training.models import (
    LATENT,
    SIGMA_MIN,
    ConsistencyModel,
    ModelSize,
)
from ddp_reference.training.stages import STAGES, Stage
from torch import Tensor, nn

SIZE = ModelSize(width=16, depth=2)
ALL_STAGES = pytest.mark.parametrize("stage", STAGES.values(), ids=list(STAGES))


@pytest.fixture
def ring() -> tuple[BurgersRing, Tensor, Tensor]:
    """Five rings, their viscosity (5, 1) and their forcing (5, POINTS)."""
    nu = torch.linspace(0.3, 0.7, 5).double()
    amplitude = torch.linspace(0.0, 1.0, 5).double()
    phase = torch.linspace(0.0, 6.0, 5).double()
    forcing = amplitude[:, None] * torch.sin(grid() + phase[:, None])
    return BurgersRing(nu, amplitude, phase), nu[:, None], forcing


def test_fields_solve_the_equation(ring: tuple[BurgersRing, Tensor, Tensor]) -> None:
    system, nu, forcing = ring
    start = torch.cos(grid()).repeat(5, 1) + 0.3 * torch.sin(2 * grid())
    step = 1e-4
    u = system.fields(start, LAG)
    rate = (system.fields(start, LAG + step) - system.fields(start, LAG - step)) / (2 * step)
    residual = rate + u * derivative(u) - nu * derivative(derivative(u)) - forcing
    assert rate.abs().max() > 0.5
    assert residual.abs().max() < 2e-3


def test_every_start_tends_to_the_steady_field(ring: tuple[BurgersRing, Tensor, Tensor]) -> None:
    system, nu, forcing = ring
    u = system.steady()
    residual = u * derivative(u) - nu * derivative(derivative(u)) - forcing
    assert residual.abs().max() < 1e-4
    late = system.fields(torch.cos(grid()).repeat(5, 1), 200.0)
    assert (late - u).abs().max() < 1e-6


def test_the_data_are_a_function_of_size_and_seed() -> None:
    first, again, other = latent_pairs(5, 1), latent_pairs(5, 1), latent_pairs(5, 2)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["field"], other["field"])
    assert {t.dtype for t in first.values()} == {torch.float32}
    assert all(t.isfinite().all() and len(t) == 5 for t in first.values())


def test_the_consistency_model_is_the_identity_at_the_lowest_level() -> None:
    noisy = torch.randn(4, LATENT)
    out = ConsistencyModel(SIZE)(noisy, torch.full((4, 1), SIGMA_MIN))
    assert torch.allclose(out, noisy, atol=1e-6)


def batch(samples: int) -> dict[str, Tensor]:
    noise = {"noise": torch.randn(samples, LATENT), "level": torch.rand(samples, 1)}
    return {**latent_pairs(samples, 3), **noise}


@ALL_STAGES
def test_a_stage_gives_one_loss_per_sample_and_calls_its_model_once(stage: Stage) -> None:
    model = stage.build_model(SIZE)
    calls: list[nn.Module] = []
    model.register_forward_hook(lambda module, inputs, output: calls.append(module))
    losses = stage.losses(model, batch(6))
    assert losses.shape == (6,)
    assert losses.dtype == torch.float32
    assert calls == [model]
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@ALL_STAGES
def test_losses_of_a_sample_do_not_depend_on_its_neighbours(stage: Stage) -> None:
    model, whole = stage.build_model(SIZE), batch(6)
    part = {key: value[2:4] for key, value in whole.items()}
    assert torch.allclose(stage.losses(model, whole)[2:4], stage.losses(model, part), atol=1e-6)


def test_the_consistency_target_carries_no_gradient() -> None:
    """The gradient is that of a loss whose lower half comes from a frozen copy."""
    stage, values = STAGES["consistency"], batch(5)
    model, frozen = stage.build_model(SIZE), stage.build_model(SIZE)
    frozen.load_state_dict(model.state_dict())

    class Split(nn.Module):
        def forward(self, noisy: Tensor, sigma: Tensor) -> Tensor:
            high, low = noisy.chunk(2)
            above, below = sigma.chunk(2)
            with torch.no_grad():
                target = frozen(low, below)
            return torch.cat([model(high, above), target])

    stage.losses(Split(), values).sum().backward()  # type: ignore[no-untyped-call]
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    stage.losses(model, values).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(gradients) == len(expected) > 0
    for gradient, wanted in zip(gradients, expected, strict=True):
        assert torch.allclose(gradient, wanted, atol=1e-6)


@ALL_STAGES
def test_the_loss_of_every_stage_goes_down(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TrainConfig(samples=320, batch_size=16, epochs=4, data=tmp_path / "data.pt")
    summary = run(stage, config)
    losses = [report.loss for report in summary.epochs]
    checks = [report.validation_loss for report in summary.epochs]
    span = abs(losses[0])
    assert losses[-1] < losses[0] - 0.15 * span, losses
    assert checks[-1] < checks[0], checks
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["1/4", "2/4", "3/4", "4/4"]
    assert f"loss {losses[0]:.6f} " in lines[0]


def test_data_of_another_kind_are_refused_by_key(tmp_path: Path) -> None:
    from ddp_reference.cache import write

    path = tmp_path / "other.pt"
    tensors = latent_pairs(8, 0)
    write(path, {**tensors, "latent": tensors["latent"][:, :5]}, "test")
    with pytest.raises(ValueError, match=r"'latent' is \(8, 5\), not \(8, 12\)"):
        lifecycle.open_data(TrainConfig(data=path, memory="file"))
