"""Risks: methods that weigh or penalise the domains' average losses R_e."""

from typing import ClassVar

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
    """mean_e R_e + weight * penalty; weight is `before` for `anneal` steps, then `penalty`, and Adam restarts there."""

    before: ClassVar[float] = 1.0

    space = ERM.space | {
        "penalty": LogUniform(-1, 5, default=100.0),
        "anneal": LogInteger(0, 4, default=500),
    }

    weight: Tensor

    def setup(self) -> None:
        super().setup()
        self.register_buffer("weight", torch.full((), self.before))

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
        return cross_entropy(logits, y).mean() + self.weight * irm_penalties(logits, y).mean()


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


@algorithm
class SD(ERM):
    """Spectral decoupling, no logit may grow: mean_e R_e + lambda mean(logit^2), over samples and classes.

    Paper: Pezeshki et al. 2021, https://arxiv.org/abs/2011.09468.
    Note: the mean over classes and the missing factor 1/2 are DomainBed's; its range of lambda belongs to them.
    Try it: when a few easy features are learned first and starve the others; it costs nothing.
    """

    space = ERM.space | {"penalty": LogUniform(-5, -1, default=0.1)}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.logits(x)
        return cross_entropy(logits, y).mean() + self.hparams["penalty"] * logits.square().mean()


def irm_penalties(logits: Tensor, y: Tensor) -> Tensor:
    """IRM's penalty [E]: the product of the derivatives on the even and the odd half of a domain's batch."""
    slopes = scale_derivative(logits, y)
    return slopes[:, ::2].mean(1) * slopes[:, 1::2].mean(1)


def scale_derivative(logits: Tensor, y: Tensor) -> Tensor:
    """d/dw of the cross-entropy of w * logits at w = 1, per sample [E, B]: <softmax(l) - onehot(y), l>."""
    expected = (softmax(logits, -1) * logits).sum(-1)
    return expected - logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)
