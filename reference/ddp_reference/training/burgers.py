"""Fields of the forced viscous Burgers equation on a ring: the data of all four stages.

    u_t + u u_x = nu u_xx + a sin(x + p),   x in [0, 2 pi), mean of u zero

The Cole-Hopf substitution u = -2 nu (ln theta)_x makes it linear,
theta_t = nu theta_xx + a cos(x + p) / (2 nu) theta, so that a field at any time is one
matrix exponential away from the first, and the steady state is the leading eigenvector
(E. Hopf, Comm. Pure Appl. Math. 3, 1950). No time stepping, no step size to get wrong.
"""

import math

import torch
from torch import Tensor

from .models import POINTS, build_encoder

LAG = 0.4  # between the two fields of a pair; a shock forms in about 1
MODES = 3  # of the initial field


def latent_pairs(samples: int, seed: int) -> dict[str, Tensor]:
    """Independent samples; a function of the arguments alone. All float32 on the CPU.

    Keys: ``field`` (n, POINTS) a developed field; ``latent`` (n, LATENT) its encoding;
    ``next_latent`` (n, LATENT) the encoding LAG later; ``steady`` (n, LATENT) the
    encoding of the state it tends to; ``condition`` (n, 3) nu, a cos p, a sin p.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(samples, 3, generator=generator, dtype=torch.float64)
    nu = 0.3 + 0.4 * draws[:, 0]  # from 0.3 on, POINTS resolve the fronts
    amplitude, phase = draws[:, 1], 2 * math.pi * draws[:, 2]
    start = _initial_potential(samples, generator)
    system = BurgersRing(nu, amplitude, phase)
    field, later = system.fields(start, LAG), system.fields(start, 2 * LAG)
    condition = torch.stack([nu, amplitude * phase.cos(), amplitude * phase.sin()], 1)
    encoder = build_encoder().double()
    with torch.no_grad():
        codes = [encoder(fields) for fields in (field, later, system.steady())]
    named = zip(("latent", "next_latent", "steady"), codes, strict=True)
    values = {"field": field, "condition": condition, **dict(named)}
    return {key: value.float() for key, value in values.items()}


class BurgersRing:
    """n independent rings, each with its viscosity, forcing amplitude and forcing phase (n,)."""

    def __init__(self, nu: Tensor, amplitude: Tensor, phase: Tensor) -> None:
        self._nu = nu[:, None]
        potential = amplitude[:, None] * torch.cos(grid() + phase[:, None]) / (2 * self._nu)
        operator = nu[:, None, None] * _second_derivative() + torch.diag_embed(potential)
        self._rates, self._vectors = torch.linalg.eigh(operator)

    def fields(self, potential: Tensor, time: float) -> Tensor:
        """u (n, POINTS) at ``time``, from the integral over x of u at time 0, (n, POINTS)."""
        theta = torch.exp(-potential / (2 * self._nu))
        modes = (self._vectors.mT @ theta[:, :, None]).squeeze(2)
        # The common factor cancels in u and would overflow for long times.
        growth = torch.exp((self._rates - self._rates[:, -1:]) * time)
        return self._velocity((self._vectors @ (growth * modes)[:, :, None]).squeeze(2))

    def steady(self) -> Tensor:
        """The one field (n, POINTS) that every start tends to."""
        return self._velocity(self._vectors[:, :, -1])

    def _velocity(self, theta: Tensor) -> Tensor:
        return -2 * self._nu * derivative(theta) / theta


def grid() -> Tensor:
    return torch.arange(POINTS, dtype=torch.float64) * (2 * math.pi / POINTS)


def derivative(values: Tensor) -> Tensor:
    """Spectral d/dx along the last dimension."""
    waves = torch.arange(POINTS // 2 + 1, dtype=torch.float64)
    waves[-1] = 0  # the derivative of the highest cosine vanishes on the grid
    slope: Tensor = torch.fft.irfft(1j * waves * torch.fft.rfft(values), n=POINTS)
    return slope


def _second_derivative() -> Tensor:
    waves = torch.arange(POINTS // 2 + 1, dtype=torch.float64)
    unit = torch.eye(POINTS, dtype=torch.float64)
    matrix: Tensor = torch.fft.irfft(-(waves**2) * torch.fft.rfft(unit), n=POINTS)
    return (matrix + matrix.T) / 2  # symmetric to the last bit, as eigh takes it


def _initial_potential(samples: int, generator: torch.Generator) -> Tensor:
    weights = torch.randn(2, samples, MODES, generator=generator, dtype=torch.float64)
    waves = torch.arange(1, MODES + 1, dtype=torch.float64)
    angles = waves[:, None] * grid()
    weights = weights / waves**2
    potential: Tensor = weights[0] @ angles.cos() + weights[1] @ angles.sin()
    return potential
