"""Risks: methods that weigh or penalise the domains' average losses R_e."""

import torch
from torch import Tensor, softmax

from domainwise.algorithms.base import Algorithm, Draw, algorithm, batch_size, cross_entropy, restart
from domainwise.protocol.spaces import LogInteger, LogUniform


@algorithm
class ERM(Algorithm):
    """Average risk: mean_e R_e.

    Paper: Vapnik 1998, Statistical Learning Theory.
    Try it: always, and first; most gaps to it are within noise.
    """

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.risks(x, y).mean()


class Penalised(ERM):
    """mean_e R_e + weight * penalty; weight is 1 for `anneal` steps, then `penalty`, and Adam restarts there."""

    space = ERM.space | {
        "penalty": LogUniform(-1, 5, default=100.0),
        "anneal": LogInteger(0, 4, default=500),
    }

    weight: Tensor

    def setup(self) -> None:
        super().setup()
        self.register_buffer("weight", torch.ones(()))

    def schedule(self, step: int, draw: Draw) -> None:
        super().schedule(step, draw)
        if step == self.hparams["anneal"]:
            self.weight.fill_(self.hparams["penalty"])
            restart(self.optimizers["network"])


@algorithm
class IRM(Penalised):
    """One classifier optimal in every domain: mean_e [R_e + lambda |d/dw R_e(w f) at w=1|^2].

    Paper: IRMv1 of Arjovsky et al. 2019, https://arxiv.org/abs/1907.02893.
    Note: as in DomainBed the square is estimated without bias by the product of the derivatives on the even and the odd
    half of the batch, so it can be negative; lambda is 1 before the anneal step, where Adam restarts.
    Try it: when a shortcut's meaning changes between your training domains (correlation shift).
    """

    space = Penalised.space | {"batch_size": batch_size(minimum=2)}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.logits(x)
        slopes = scale_derivative(logits, y)
        penalties = slopes[:, ::2].mean(1) * slopes[:, 1::2].mean(1)
        return cross_entropy(logits, y).mean() + self.weight * penalties.mean()


@algorithm
class VREx(Penalised):
    """Equal risks: mean_e R_e + lambda Var_e(R_e).

    Paper: Krueger et al. 2021, https://arxiv.org/abs/2003.00688.
    Note: lambda is 1 before the anneal step, where Adam restarts.
    Try it: when some domain is learned at the expense of another.
    """

    needs_domains = 2
    space = Penalised.space | {"penalty": LogUniform(-1, 5, default=10.0)}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        risks = self.risks(x, y)
        return risks.mean() + self.weight * risks.var(unbiased=False)


@algorithm
class GroupDRO(ERM):
    """The worst domain counts most: sum_e q_e R_e, where q_e <- q_e exp(eta R_e), normalised.

    Paper: Sagawa et al. 2020, https://arxiv.org/abs/1911.08731.
    Try it: when one domain is rare or hard and must not be sacrificed.
    """

    needs_domains = 2
    space = ERM.space | {"eta": LogUniform(-3, -1, default=1e-2)}

    q: Tensor

    def setup(self) -> None:
        super().setup()
        self.register_buffer("q", torch.full((self.problem.domains,), 1 / self.problem.domains))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        risks = self.risks(x, y)
        q = (self.q.log() + self.hparams["eta"] * risks.detach()).softmax(0)  # no overflow, however large the risks
        self.q.copy_(q)
        return q @ risks


def scale_derivative(logits: Tensor, y: Tensor) -> Tensor:
    """d/dw of the cross-entropy of w * logits at w = 1, per sample [E, B]: <softmax(l) - onehot(y), l>."""
    expected = (softmax(logits, -1) * logits).sum(-1)
    return expected - logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)
