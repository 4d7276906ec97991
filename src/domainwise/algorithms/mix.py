"""Mixing: training on interpolations between domains."""

import torch
from torch import Tensor

from domainwise.algorithms.base import algorithm, cross_entropy
from domainwise.algorithms.risk import ERM
from domainwise.protocol.spaces import LogUniform


@algorithm
class Mixup(ERM):
    """Between domains: mean over a ring of pairs (i, j) of l CE(x', y_i) + (1-l) CE(x', y_j), x' = l x_i + (1-l) x_j.

    Paper: Yan et al. 2020, https://arxiv.org/abs/2001.00677.
    Note: every step draws a random ring of the domains and one l ~ Beta(alpha, alpha) per pair, as in DomainBed.
    A BatchNorm that learns sees the mixed images of one pair at a time.
    Try it: as a cheap regulariser when domains show the same objects in different styles.
    """

    reads_inputs = True
    needs_domains = 2
    domain_by_domain = True
    space = ERM.space | {"alpha": LogUniform(-1, 1, default=0.2, minimum=1e-6)}

    concentration: Tensor

    def setup(self) -> None:
        super().setup()
        shape = (2, self.problem.domains)
        alphas = torch.full(shape, self.hparams["alpha"], dtype=torch.float64)
        self.register_buffer("concentration", alphas, persistent=False)

    def shares(self) -> Tensor:
        """One l ~ Beta(alpha, alpha) per domain, from two gamma variates."""
        gammas = torch._standard_gamma(self.concentration.double(), generator=self.noise)
        return (gammas[0] / gammas.sum(0)).to(self.problem.low.dtype)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        ring = self.shuffle(len(x))
        x, y = x[ring], y[ring]
        share = self.shares()
        wide = share.view(-1, *[1] * (x.ndim - 1))
        logits = self.logits(wide * x + (1 - wide) * x.roll(-1, 0))
        near, far = cross_entropy(logits, y).mean(1), cross_entropy(logits, y.roll(-1, 0)).mean(1)
        return (share * near + (1 - share) * far).mean()
