"""Flat minima: adversarial training in the space of weights.

    min_w max_(|eps| <= rho) R(w + eps),    R = mean_e R_e

DAT moves the inputs up the loss, these methods the weights: one step of length rho along the gradient g of all weights
together, eps = rho g / |g|. As in `adversarial`, the ascent turns dropout off and leaves BatchNorm's statistics as they
are, so SAM with rho = 0 is exactly ERM. The weights are copied before the ascent and copied back after it: adding and
subtracting would round.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from domainwise.algorithms.base import algorithm
from domainwise.algorithms.risk import ERM
from domainwise.nets.modes import repeatable
from domainwise.protocol.spaces import Choice, LogUniform


@algorithm
class SAM(ERM):
    """Sharpness-aware minimisation: R(w + rho g / |g|), where R = mean_e R_e and g is its gradient at w.

    Paper: Foret et al. 2021, https://arxiv.org/abs/2010.01412.
    Note: the gradient at the moved weights is applied at w, by Adam; g is not differentiated. The range of rho is the
    grid that the paper searches.
    Try it: when a pre-trained network overfits the training domains; a step has two forward-backward passes.
    """

    passes = 2.0
    both_risks: ClassVar[bool] = False
    """Whether a step also descends the risk at w."""
    space = ERM.space | {"rho": Choice((0.01, 0.02, 0.05, 0.1, 0.2, 0.5), default=0.05)}

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        weights = [weight for weight in self.network.parameters() if weight.requires_grad]
        with repeatable(self.network):
            risk = self.loss(x, y)
        gradients = torch.autograd.grad(risk, weights, materialize_grads=True)
        start = [weight.detach().clone() for weight in weights]
        length = self.step_length(total_norm(gradients))
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight += length * gradient
        self.optimizers["network"].zero_grad()
        moved_risk = self.loss(x, y)
        moved_risk.backward()
        with torch.no_grad():
            for weight, value in zip(weights, start, strict=True):
                weight.copy_(value)
        if self.both_risks:
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
        self.optimizers["network"].step()
        return (risk + moved_risk if self.both_risks else moved_risk).detach()

    def step_length(self, norm: Tensor) -> Tensor:
        """The multiple of the gradient by which the weights move, given the gradient's norm."""
        return self.hparams["rho"] / norm


@algorithm
class SAGM(SAM):
    """Both risks and the angle between their gradients: R(w) + R(w + rho g / |g| - alpha g), g the gradient of R at w.

    Paper: Wang et al. 2023, https://arxiv.org/abs/2303.10353.
    Note: the second term is small where the gradients at both weights agree. g is not differentiated, so the step
    follows the sum of the two gradients; the released code takes half of it, which for Adam is nearly the same.
    Try it: where SAM helps; it costs the same.
    """

    both_risks = True
    space = SAM.space | {"alpha": LogUniform(-4, -2, default=1e-3)}

    def step_length(self, norm: Tensor) -> Tensor:
        return super().step_length(norm) - self.hparams["alpha"]


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all tensors together, not zero."""
    return torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors]).norm().clamp_min(1e-12)
