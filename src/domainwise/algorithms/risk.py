"""Risks: how the domains' average losses R_e are weighed against each other."""

import torch
from torch import Tensor, softmax

from domainwise.algorithms.base import Algorithm, Problem, algorithm, cross_entropy, restart
from domainwise.nets import Network
from domainwise.protocol.spaces import ByScale, HParams, LogInteger, LogUniform


@algorithm
class ERM(Algorithm):
    """Average risk: mean_e R_e.

    Vapnik 1998, Statistical Learning Theory.
    """

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.risks(x, y).mean()

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Per-sample losses [E, B]."""
        return cross_entropy(self.logits(x), y)

    def risks(self, x: Tensor, y: Tensor) -> Tensor:
        """R_e, the domains' average losses [E]."""
        return self.losses(x, y).mean(1)


class Penalised(ERM):
    """mean_e R_e + weight * penalty; weight is 1 for `anneal` steps, then `penalty`, and Adam restarts there."""

    space = ERM.space | {
        "penalty": LogUniform(-1, 5, default=100.0),
        "anneal": LogInteger(0, 4, default=500),
    }

    weight: Tensor

    def __init__(self, network: Network, problem: Problem, hparams: HParams, noise: torch.Generator) -> None:
        super().__init__(network, problem, hparams, noise)
        self.register_buffer("weight", problem.low.new_ones(()))

    def schedule(self, step: int) -> None:
        if step == self.hparams["anneal"]:
            self.weight.fill_(self.hparams["penalty"])
            restart(self.optimizers["network"])


@algorithm
class IRM(Penalised):
    """One classifier optimal in every domain: mean_e [R_e + lambda |d/dw R_e(w f) at w=1|^2].

    IRMv1 of Arjovsky et al. 2019, https://arxiv.org/abs/1907.02893. As in DomainBed the square is estimated
    without bias by the product of the derivatives on the even and the odd half of the batch, so it can be negative.
    """

    space = Penalised.space | {
        "batch_size": ByScale(
            small=LogInteger(3, 9, default=64, base=2, minimum=2),
            image=LogInteger(3, 5.5, default=32, base=2, minimum=2),
        ),
    }

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.logits(x)
        slopes = scale_derivative(logits, y)
        penalties = slopes[:, ::2].mean(1) * slopes[:, 1::2].mean(1)
        return cross_entropy(logits, y).mean() + self.weight * penalties.mean()


def scale_derivative(logits: Tensor, y: Tensor) -> Tensor:
    """d/dw of the cross-entropy of w * logits at w = 1, per sample [E, B]: <softmax(l) - onehot(y), l>."""
    expected = (softmax(logits, -1) * logits).sum(-1)
    return expected - logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)
