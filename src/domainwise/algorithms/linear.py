"""The linearisation of domain-wise adversarial training, a penalty like IRM's."""

import torch
from torch import Tensor

from domainwise.algorithms.base import algorithm
from domainwise.algorithms.risk import Penalised


@algorithm
class LDAT(Penalised):
    """Linearised DAT with delta = x: mean_e [R_e + lambda (E_e <grad_x loss, x>)^2].

    Paper: the Remark of Xin et al. 2023, https://arxiv.org/abs/2212.09082, at the level of environments.
    Note: without biases and with piecewise linear activations this is IRM's penalty; lambda and anneal are as for IRM.
    Try it: to study how IRM and DAT are related.
    """

    differentiates_twice = True
    passes = 3.0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        losses = self.losses(x, y)
        (gradient,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
        products = (gradient * x.detach()).flatten(2).sum(2)
        return losses.mean() + self.weight * products.mean(1).square().mean()
