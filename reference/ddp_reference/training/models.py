"""The four small networks.

Every module has a forward of its own. Under a DDP or FSDP wrapper, which dynamo does not
trace, a model that is an ``nn.Sequential`` would run uncompiled and say nothing: torch
skips the frames of its own containers (seen with 2.13).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

POINTS = 32  # of a field's grid
LATENT = 12
CONDITION = 3
LEVEL_FEATURES = 8
SIGMA_DATA = 0.5  # spread of a latent's entries, about
SIGMA_MIN = 0.02
LOG_VARIANCE_MIN, LOG_VARIANCE_MAX = -6.0, 3.0


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Hidden units and residual blocks."""

    width: int
    depth: int


class FieldEncoder(nn.Module):
    """Field (B, POINTS) -> latent (B, LATENT): a linear map that starts as Fourier modes."""

    def __init__(self) -> None:
        super().__init__()
        waves = torch.arange(1, LATENT // 2 + 1)[:, None]
        angles = 2 * math.pi / POINTS * waves * torch.arange(POINTS)
        # A field's amplitudes fall about like 1/k; times k, the modes weigh alike.
        modes = torch.cat([waves * angles.cos(), waves * angles.sin()])
        self.weight = nn.Parameter(modes / POINTS)

    def forward(self, field: Tensor) -> Tensor:
        return functional.linear(field, self.weight)


def build_encoder() -> FieldEncoder:
    """A fresh encoder, always the same at first.

    The data are encoded with one and a model trains another. One encoder for both would
    move the targets with every step, and to the GPU with ``model.to``.
    """
    return FieldEncoder()


class Block(nn.Module):
    """Residual block of two linear layers, width preserved."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        inner: Tensor = self.narrow(functional.gelu(self.wide(self.norm(hidden))))
        return hidden + inner


class Trunk(nn.Module):
    """(B, inputs) -> (B, outputs) through ``depth`` residual blocks."""

    def __init__(self, inputs: int, outputs: int, size: ModelSize) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, size.width)
        self.blocks = nn.ModuleList(Block(size.width) for _ in range(size.depth))
        self.leave = nn.Linear(size.width, outputs)

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.enter(values)
        for block in self.blocks:
            hidden = block(hidden)
        out: Tensor = self.leave(hidden)
        return out


class LatentOperator(nn.Module):
    """Field (B, POINTS) and condition (B, 3) -> the latent one LAG later (B, LATENT)."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.encoder = build_encoder()
        self.trunk = Trunk(LATENT + CONDITION, LATENT, size)

    def forward(self, field: Tensor, condition: Tensor) -> Tensor:
        latent: Tensor = self.encoder(field)
        change: Tensor = self.trunk(torch.cat([latent, condition], 1))
        return latent + change


class Denoiser(nn.Module):
    """Noisy latent (B, LATENT) at noise level (B, 1) -> the noise in it (B, LATENT)."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.trunk = Trunk(LATENT + LEVEL_FEATURES, LATENT, size)

    def forward(self, noisy: Tensor, level: Tensor) -> Tensor:
        out: Tensor = self.trunk(torch.cat([noisy, level_features(level)], 1))
        return out


class ConsistencyModel(nn.Module):
    """Noisy latent (B, LATENT) at sigma (B, 1) -> the clean latent its path starts at.

    At SIGMA_MIN it is the identity by construction (Song et al., ICML 2023, section 3).
    """

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.trunk = Trunk(LATENT + LEVEL_FEATURES, LATENT, size)

    def forward(self, noisy: Tensor, sigma: Tensor) -> Tensor:
        total = (sigma**2 + SIGMA_DATA**2).sqrt()
        above = sigma - SIGMA_MIN
        skip = SIGMA_DATA**2 / (above**2 + SIGMA_DATA**2)
        features = level_features(sigma.log() / 4)
        inner: Tensor = self.trunk(torch.cat([noisy / total, features], 1))
        return skip * noisy + SIGMA_DATA * above / total * inner


class SteadyPrior(nn.Module):
    """Condition (B, 3) -> mean and log variance, each (B, LATENT), of the steady latent."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.trunk = Trunk(CONDITION, 2 * LATENT, size)

    def forward(self, condition: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.trunk(condition).chunk(2, 1)
        middle, reach = _centre(LOG_VARIANCE_MIN, LOG_VARIANCE_MAX)
        return mean, middle + reach * spread.tanh()


def level_features(level: Tensor) -> Tensor:
    """(B, 1) -> (B, LEVEL_FEATURES): sines and cosines of octaves."""
    octaves: Tensor = 2.0 ** torch.arange(LEVEL_FEATURES // 2, device=level.device)
    angles: Tensor = math.pi / 2 * octaves * level
    return torch.cat([angles.sin(), angles.cos()], 1).to(level.dtype)


def _centre(low: float, high: float) -> tuple[float, float]:
    return (low + high) / 2, (high - low) / 2
