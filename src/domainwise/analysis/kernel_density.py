"""Diversity and correlation shift as integrals over densities (OoD-Bench, Ye et al. 2022).

    diversity   = 1/2 integral of |p(z) - q(z)|                                     where p or q is (near) zero
    correlation = 1/2 integral of sqrt(p(z) q(z)) sum_y |p(y|z) - q(y|z)|           where both are positive

p and q are the densities of a feature z in the training and in the test domains. The integrals are means over points
drawn from m = (p + q) / 2, each weighed by 1 / m. Paper: https://arxiv.org/abs/2106.03721.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

POINTS = 10_000
"""Points at which the integrals are sampled."""
CONTROL = (0.005, 0.01)
"""The shift that calibrated thresholds show for an i.i.d. split."""


@dataclass(frozen=True)
class Thresholds:
    """Below `diversity` a density counts as zero; above `correlation` as positive."""

    diversity: float = 1e-12
    correlation: float = 5e-4


class Density(Protocol):
    """The joint density of features and labels on one side."""

    def joint(self, z: Tensor) -> Tensor:
        """p(z, y) at points [M, d], for every class: [M, classes]."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Points [n, d] drawn from p(z)."""


@dataclass(frozen=True)
class KernelDensity:
    """Gaussian kernels around features [n, d] with labels [n]: p(z, y) = mean_i [y_i = y] N(z; z_i, width^2)."""

    features: Tensor
    labels: Tensor
    classes: int
    width: float

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor, classes: int) -> "KernelDensity":
        """With Scott's width for features of unit variance, n^(-1 / (d + 4))."""
        n, d = features.shape
        return cls(features.double(), labels, classes, n ** (-1 / (d + 4)))

    def joint(self, z: Tensor) -> Tensor:
        n, d = self.features.shape
        one_hot = torch.nn.functional.one_hot(self.labels, self.classes).double()
        scale = n * (2 * math.pi * self.width**2) ** (d / 2)
        parts = []
        for chunk in z.double().split(max(1, 4_000_000 // n)):
            squares = torch.cdist(chunk, self.features).square_()
            parts.append(squares.mul_(-0.5 / self.width**2).exp_() @ one_hot / scale)
        return torch.cat(parts)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        picks = torch.randint(len(self.features), (n,), generator=generator)
        noise = torch.randn(n, self.features.shape[1], generator=generator, dtype=torch.float64)
        return self.features[picks] + self.width * noise


@dataclass(frozen=True)
class Sampled:
    """p(z, y) and q(z, y) at points [M, d] drawn from (p + q) / 2."""

    points: Tensor
    p: Tensor  # [M, classes]
    q: Tensor

    @classmethod
    def of(cls, p: Density, q: Density, generator: torch.Generator, points: int = POINTS) -> "Sampled":
        half = points // 2
        z = torch.cat([p.sample(half, generator), q.sample(points - half, generator)])
        return cls(z, p.joint(z), q.joint(z))

    def diversity(self, eps: float) -> float:
        p, q = self.p.sum(1), self.q.sum(1)
        part = torch.minimum(p, q) < eps
        return float(((p - q).abs() / (p + q) * part).mean())

    def correlation(self, eps: float) -> float:
        p, q = self.p.sum(1), self.q.sum(1)
        part = torch.minimum(p, q) > eps
        conditional = (self.p / p[:, None] - self.q / q[:, None]).abs().sum(1)
        return float(torch.where(part, (p * q).sqrt() / (p + q) * conditional, 0).mean())


def calibrate(control: Sampled) -> Thresholds:
    """Thresholds at which an i.i.d. split shows a shift within CONTROL, by bisection over their logarithm.

    A larger threshold finds more diversity and less correlation. One that cannot reach it keeps the nearest value.
    """
    diversity = _bisect(lambda exponent: control.diversity(10**exponent), rising=True)
    correlation = _bisect(lambda exponent: control.correlation(10**exponent), rising=False)
    return Thresholds(10**diversity, 10**correlation)


def _bisect(value: Callable[[float], float], rising: bool, low: float = -30.0, high: float = 3.0) -> float:
    for _ in range(40):
        middle = (low + high) / 2
        shift = value(middle)
        if CONTROL[0] <= shift <= CONTROL[1]:
            return middle
        if (shift < CONTROL[0]) == rising:
            low = middle
        else:
            high = middle
    return (low + high) / 2
