"""Ensembles: one model per training domain."""

import copy
import math

import torch
from torch import Tensor, nn

from domainwise.algorithms.adversarial import DAT
from domainwise.algorithms.base import algorithm


class Vote(nn.Module):
    """The logarithm of the members' mean probability."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        votes = torch.stack([member(x).log_softmax(-1) for member in self.members])
        return votes.logsumexp(0) - math.log(len(self.members))

    def represent(self, x: Tensor) -> Tensor:
        """The members' features side by side."""
        return torch.cat([getattr(member, "represent", member)(x) for member in self.members], 1)


@algorithm
class EnsembleUAT(DAT):
    """One UAT model per training domain: sum_e max_(|delta_e| <= eps) R_e(f_e(x + delta_e)); their mean decides.

    Paper: the comparison of Table 4 of Xin et al. 2023, https://arxiv.org/abs/2212.09082.
    Note: this is DAT with nothing shared; the members start from equal weights. Probabilities are averaged,
    since a majority of two can tie.
    Try it: to see what sharing one network adds.
    """

    space = {name: parameter for name, parameter in DAT.space.items() if name != "update"}

    def setup(self) -> None:
        self.network = Vote([copy.deepcopy(self.network) for _ in range(self.problem.domains)])
        super().setup()

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        return self.descend(self.perturbed_risks(x, y, self.delta).sum(), "network") / self.problem.domains

    def logits(self, x: Tensor) -> Tensor:
        """Each member sees its own domain."""
        return torch.stack([member(part) for member, part in zip(self.network.members, x, strict=True)])
