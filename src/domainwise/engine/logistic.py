"""Multinomial logistic regression: linear probes of features, and the classifier that a training may start with."""

import torch
from torch import Tensor
from torch.nn import functional as F

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
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=200, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = x @ weights + bias
        mean = F.cross_entropy(logits, y) if shares is None else F.cross_entropy(logits, y, reduction="none") @ shares
        loss = mean + penalty / 2 * weights.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return weights.detach(), bias.detach()
