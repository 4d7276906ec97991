"""Contrast: methods that compare samples with samples, of the same class or of another domain."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import algorithm, batch_size, cross_entropy
from domainwise.algorithms.risk import ERM
from domainwise.protocol.spaces import Choice


@algorithm
class SelfReg(ERM):
    """Samples of a class look alike: R + min(1, R) [l (D(f, f') + 0.3 D(z, p')) + (1-l) (D(f, f'') + 0.3 D(z, p''))].

    R = mean_e R_e, f are the logits, z the features and p projected features; D is the mean of squared differences. f'
    and p' belong to a random sample of the same class, f'' = l f' + (1-l) f* and p'' likewise mix it with another one.

    Paper: Kim et al. 2021, https://arxiv.org/abs/2104.09841.
    Note: l ~ Beta(1/2, 1/2), and min(1, R) is a constant for the gradient. As in DomainBed there is no averaging of
    weights. The projection is trained with the rest, as in the paper (DomainBed's optimiser leaves it out). It has
    three layers as wide as the features or wider: with a small network it takes most of a step's time. Where the
    features do not learn, the projection would change nothing else, and is left out with its terms.
    Try it: when classes are few and every batch has several samples of each.
    """

    needs_features = True
    passes = 2.2
    space = ERM.space | {"batch_size": batch_size(minimum=2)}

    def setup(self) -> None:
        super().setup()
        size = self.network.feature_size
        hidden = min(2 * size, max(size, 2048))
        self.projection = nn.Sequential(
            *(nn.Linear(size, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, size, bias=False), nn.BatchNorm1d(size)),
        )

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.represent(x)
        logits = self.classify(z)
        risk = cross_entropy(logits, y).mean()
        z, logits, labels = z.flatten(0, 1), logits.flatten(0, 1), y.flatten()
        share = (self.random() * (math.pi / 2)).sin().square()  # Beta(1/2, 1/2)
        first, second = self.partners(labels), self.partners(labels)

        def dissimilarity(values: Tensor, others: Tensor) -> Tensor:
            near, far = others[first], others[second]
            mixed = share * near + (1 - share) * far
            return share * (values - near).square().mean() + (1 - share) * (values - mixed).square().mean()

        penalty = dissimilarity(logits, logits)
        if z.requires_grad:
            penalty = penalty + 0.3 * dissimilarity(z, self.projection(z))
        return risk + risk.detach().clamp(max=1) * penalty

    def partners(self, labels: Tensor) -> Tensor:
        """A random permutation of the samples within their classes."""
        ordered = labels.argsort(stable=True)
        mixed = (labels + self.random(len(labels), dtype=torch.float64)).argsort()
        return mixed[ordered.argsort()]


class ContrastiveBottleneck(ERM):
    """mean_e R_e - lambda mean_i log P_i(another domain | similar samples)."""

    needs_domains = 2
    needs_features = True
    moves_features = True
    conditional: ClassVar[bool]
    space = ERM.space | {
        "lambda": Choice((1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0), default=0.1),
        "temperature": Choice((0.05, 0.1), default=0.1, minimum=1e-3),
    }

    domain_numbers: Tensor

    def setup(self) -> None:
        super().setup()
        self.register_buffer("domain_numbers", torch.arange(self.problem.domains).view(-1, 1), persistent=False)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.represent(x)
        return cross_entropy(self.classify(z), y).mean() + self.hparams["lambda"] * self.bottleneck(z, y)

    def bottleneck(self, z: Tensor, y: Tensor) -> Tensor:
        temperature = self.hparams["temperature"]
        samples, labels, domains = z.flatten(0, 1), y.flatten(), self.domain_numbers.expand(y.shape).flatten()
        similarities = samples @ samples.T / temperature
        compared = ~torch.eye(len(samples), dtype=torch.bool, device=z.device)
        if self.conditional:
            compared &= labels[:, None] == labels
        abroad = compared & (domains[:, None] != domains)
        surprise = logsumexp_where(compared, similarities) - logsumexp_where(abroad, similarities)
        counted = abroad.any(1)
        return temperature / 0.07 * surprise.masked_fill(~counted, 0).sum() / counted.sum().clamp_min(1)


def logsumexp_where(mask: Tensor, values: Tensor) -> Tensor:
    """log sum exp over the last dimension of the entries in the mask; a huge negative number where there are none."""
    return values.masked_fill(~mask, -1e30).logsumexp(-1)


@algorithm
class CAD(ContrastiveBottleneck):
    """Neighbours of other domains: mean_e R_e - lambda mean_i log (sum_(e_j != e_i) w_ij / sum_(j != i) w_ij).

    w_ij = exp(<z_i, z_j> / t), and e_i is the domain of sample i.

    Paper: the contrastive adversarial domain bottleneck of Ruan et al. 2022, https://arxiv.org/abs/2201.00057.
    Note: in DomainBed's form: features are neither projected nor normalised, -log(1 - p) in place of log p, and lambda
    is multiplied by t / 0.07. All samples count (DomainBed's code leaves out those without another of their class).
    Try it: on strong pre-trained features, to remove information about the domain.
    """

    conditional = False


@algorithm
class CondCAD(ContrastiveBottleneck):
    """CAD within classes: mean_e R_e - lambda mean_i log (sum_(e_j != e_i) w_ij / sum_(j != i) w_ij), j of i's class.

    w_ij = exp(<z_i, z_j> / t), and e_i is the domain of sample i; samples without a j in another domain are not
    counted.

    Paper: Ruan et al. 2022, https://arxiv.org/abs/2201.00057.
    Note: in DomainBed's form, as CAD.
    Try it: instead of CAD when domains differ in how often classes occur.
    """

    conditional = True


def supervised_contrast(z: Tensor, y: Tensor, temperature: float = 0.07) -> Tensor:
    """-log p_ij, p_i the softmax over j != i of cos(z_i, z_j) / t: the mean over j of i's class and over i.

    Vectors shorter than 0.01 are divided by that instead of their length: the gradient of a direction has no limit.
    """
    samples, labels = F.normalize(z.flatten(0, 1), dim=1, eps=0.01), y.flatten()
    similarities = samples @ samples.T / temperature
    others = ~torch.eye(len(labels), dtype=torch.bool, device=z.device)
    alike = others & (labels[:, None] == labels)
    log_shares = similarities - logsumexp_where(others, similarities)[:, None]
    means = log_shares.masked_fill(~alike, 0).sum(1) / alike.sum(1).clamp_min(1)
    return -means.sum() / alike.any(1).sum().clamp_min(1)
