"""What methods that compare distributions by the maximum mean discrepancy share."""

from collections.abc import Sequence

import torch
from torch import Tensor


def gaussian_kernel(squares: Tensor, widths: Sequence[float]) -> Tensor:
    """sum_w exp(-w d^2), for the squared distances d^2 of pairs of points."""
    return torch.stack([torch.exp(-width * squares) for width in widths]).sum(0)


def squared_distances(points: Tensor) -> Tensor:
    """Of all pairs of points [N, F], at least 1e-30: [N, N]."""
    lengths = points.square().sum(1)
    return (lengths[:, None] + lengths[None] - 2 * points @ points.T).clamp_min(1e-30)
