"""Multinomial logistic regression: linear probes of features, and the classifier that a training may start with."""

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.core.optimizers import LBFGS

PENALTY = 1e-2
"""Weight of |W|^2 / 2 beside the mean cross-entropy, on standardised features."""


def logistic_regression(
    x: Tensor, y: Tensor, classes: int, *, shares: Tensor | None = None, penalty: float = PENALTY
) -> tuple[Tensor, Tensor]:
    """The minimum of the mean cross-entropy + penalty |W|^2 / 2: W [F, classes] and biases [classes].

    `shares` are the samples' shares of the mean, by default equal ones.
    """
    weights = x.new_zeros(x.shape[1], classes, requires_grad=True)
    bias = x.new_zeros(classes, requires_grad=True)
    optimizer = LBFGS([weights, bias], max_iter=200, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = x @ weights + bias
        mean = F.cross_entropy(logits, y) if shares is None else F.cross_entropy(logits, y, reduction="none") @ shares
        loss = mean + penalty / 2 * weights.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weights.detach(), bias.detach()


def sparse_logistic_regression(
    x: Tensor,
    y: Tensor,
    classes: int,
    penalty: float,
    start: tuple[Tensor, Tensor] | None = None,
    *,
    iterations: int = 3000,
    tolerance: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """The minima of the mean cross-entropy + penalty |W|_1, of several problems at once; biases are free.

    x is [P, N, F] and y [P, N] of P problems; W is [P, F, classes], the biases [P, 1, classes]. By accelerated proximal
    gradient steps with adaptive restarts: Beck and Teboulle 2009, O'Donoghue and Candes 2015,
    https://arxiv.org/abs/1204.3982. Stops where no number changes by more than the tolerance.
    """
    targets = F.one_hot(y, classes).to(x.dtype)
    augmented = torch.cat([x, torch.ones_like(x[..., :1])], -1)
    transposed = augmented.mT.contiguous()
    step = 2 * x.shape[1] / torch.linalg.matrix_norm(augmented, 2).square().view(-1, 1, 1)
    limit = torch.cat([torch.full_like(x[:, :1].mT, penalty), x.new_zeros(len(x), 1, 1)], 1) * step
    now = x.new_zeros(len(x), x.shape[2] + 1, classes) if start is None else torch.cat(start, 1)
    ahead, momentum = now, x.new_ones(len(x), 1, 1)
    for _ in range(iterations):
        gradient = transposed @ ((augmented @ ahead).softmax(-1) - targets) / x.shape[1]
        moved = ahead - step * gradient
        new = moved.sign() * (moved.abs() - limit).clamp(min=0)
        if float((new - now).abs().max()) <= tolerance:
            now = new
            break
        uphill = ((ahead - new) * (new - now)).sum((1, 2), keepdim=True) > 0
        faster = torch.where(uphill, 1.0, (1 + (1 + 4 * momentum.square()).sqrt()) / 2)
        ahead = new + torch.where(uphill, 0.0, (momentum - 1) / faster) * (new - now)
        now, momentum = new, faster
    return now[:, :-1], now[:, -1:]
