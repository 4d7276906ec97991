"""The kernel two-sample test: do two samples come from one distribution?

    MMD^2(X, Y) = mean_(i != j) k(x_i, x_j) + mean_(i != j) k(y_i, y_j) - 2 mean k(x_i, y_j),
    k(a, b) = exp(-|a - b|^2 / (2 s^2))

is the unbiased estimate, which is about zero (and may be negative) if the distributions are equal. The p-value of the
permutation test is exact: under the null hypothesis every division of the pooled sample into two is equally likely.

Paper: Gretton et al. 2012, https://jmlr.org/papers/v13/gretton12a.html.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

PERMUTATIONS = 999


@dataclass(frozen=True)
class TwoSamples:
    """The distance between two samples, and the p-value of the permutation test."""

    mmd2: float
    p: float


def median_distance(*samples: Tensor) -> float:
    """The median heuristic: the median distance between two points of the pooled samples; 1 if that is zero."""
    pooled = torch.cat([sample.double() for sample in samples])
    distances = torch.pdist(pooled)
    return (float(distances.median()) if len(distances) else 0.0) or 1.0


def compare(
    x: Tensor, y: Tensor, width: float, generator: torch.Generator, permutations: int = PERMUTATIONS
) -> TwoSamples:
    """Tests X [n, F] against Y [m, F] with a kernel of this width; n and m are at least 2.

    The width must not depend on which points are in X and which in Y.
    """
    n, total = len(x), len(x) + len(y)
    kernel = _kernel(x, y, width)
    divisions = torch.rand(permutations, total, generator=generator, dtype=torch.float64).argsort(1) < n
    observed = torch.arange(total) < n
    values = _mmd2(kernel, torch.cat([observed[None], divisions]).double())
    as_large = int((values[1:] >= values[0] - 1e-12).sum())
    return TwoSamples(float(values[0]), (1 + as_large) / (1 + permutations))


def distance(x: Tensor, y: Tensor, width: float) -> float:
    """MMD^2 of X [n, F] and Y [m, F], without a test; n and m are at least 2."""
    observed = torch.arange(len(x) + len(y)) < len(x)
    return float(_mmd2(_kernel(x, y, width), observed[None].double()))


def _kernel(x: Tensor, y: Tensor, width: float) -> Tensor:
    """The kernel matrix of the pooled samples, with an empty diagonal."""
    pooled = torch.cat([x, y]).double()
    return torch.exp(-torch.cdist(pooled, pooled).square() / (2 * width**2)).fill_diagonal_(0)


def _mmd2(kernel: Tensor, chosen: Tensor) -> Tensor:
    """MMD^2 of each division [P, N] (1 for X, 0 for Y), from a kernel matrix [N, N] with an empty diagonal."""
    n, m = chosen[0].sum(), (1 - chosen[0]).sum()
    within = ((chosen @ kernel) * chosen).sum(1)
    across = chosen @ kernel.sum(1) - within
    other = kernel.sum() - within - 2 * across
    return within / (n * (n - 1)) + other / (m * (m - 1)) - 2 * across / (n * m)
