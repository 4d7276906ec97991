"""Causal invariance: methods that make random parts of all features similarly distributed."""

import torch
from torch import Tensor

from domainwise.algorithms.base import algorithm, batch_size, cross_entropy
from domainwise.algorithms.discrepancy import gaussian_kernel, squared_distances
from domainwise.algorithms.match import MMD
from domainwise.algorithms.risk import ERM
from domainwise.protocol.spaces import LogUniform


class RandomParts(ERM):
    """mean_e R_e + gamma * (a distance between two parts of all features).

    The first part has the first c_e samples of each domain's batch, c_e uniform in 0, ..., B - 1; the second has the
    rest. Sizes are random, so the parts are weights: shapes stay as they are.
    """

    needs_features = True
    moves_features = True
    domain_by_domain = True
    space = ERM.space | {"gamma": LogUniform(-1, 1, default=1.0), "batch_size": batch_size(minimum=2)}

    def distance(self, z: Tensor, parts: Tensor, counts: Tensor) -> Tensor:
        """Between two parts of features [N, F], given as zeros and ones [2, N] with their sums [2, 1]."""
        raise NotImplementedError

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.represent(x)
        risk = cross_entropy(self.classify(z), y).mean()
        domains, batch = y.shape
        cuts = (self.random(domains, 1, dtype=torch.float64) * batch).long()
        first = (torch.arange(batch, device=y.device) < cuts).flatten()
        parts = torch.stack([first, ~first]).to(z.dtype)
        counts = parts.sum(1, keepdim=True)
        distance = self.distance(z.flatten(0, 1), parts, counts)
        return risk + self.hparams["gamma"] * distance.masked_fill((counts < 2).any(), 0)


@algorithm
class CausIRL_CORAL(RandomParts):
    """CORAL on random parts: mean_e R_e + gamma [msd(mean_1, mean_2) + msd(cov_1, cov_2)], 1 and 2 parts of all z.

    Paper: Chevalley et al. 2022, https://arxiv.org/abs/2206.11646.
    Note: msd is the mean of squared differences over entries. Part 1 has the first c_e samples of each domain's batch,
    c_e random; without two samples in each part the distance is 0, as in DomainBed.
    Try it: like CORAL, with a single domain too, or where domain labels are poor.
    """

    def distance(self, z: Tensor, parts: Tensor, counts: Tensor) -> Tensor:
        means = parts @ z / counts.clamp_min(1)
        centred = z - torch.where(parts[0].bool()[:, None], means[0], means[1])
        shares = parts / (counts - 1).clamp_min(1)
        covariance_gap = self.gap_by_samples if len(z) < z.shape[1] else self.gap_by_features
        return (means[0] - means[1]).square().mean() + covariance_gap(centred, shares[0] - shares[1])

    def gap_by_features(self, centred: Tensor, shares: Tensor) -> Tensor:
        """msd(cov_1, cov_2): cov_1 - cov_2 = sum_i s_i c_i c_i^T, of samples c [N, F] with shares s [N]."""
        return ((shares[:, None] * centred).T @ centred).square().mean()

    def gap_by_samples(self, centred: Tensor, shares: Tensor) -> Tensor:
        """The same, sum_ij s_i s_j <c_i, c_j>^2 / F^2: a far smaller matrix where features outnumber samples.

        The difference of large numbers is taken in float64.
        """
        samples, exact = centred.double(), shares.double()
        gap = exact @ (samples @ samples.T).square() @ exact
        return (gap / centred.shape[1] ** 2).to(centred.dtype)


@algorithm
class CausIRL_MMD(RandomParts):
    """MMD on random parts: mean_e R_e + gamma |mu_1 - mu_2|^2, mu embedded by seven Gaussian kernels.

    Paper: Chevalley et al. 2022, https://arxiv.org/abs/2206.11646.
    Note: part 1 has the first c_e samples of each domain's batch, c_e random, part 2 the rest; without two samples in
    each part the distance is 0, as in DomainBed.
    Try it: like CausIRL_CORAL, when more than means and covariances differ.
    """

    def distance(self, z: Tensor, parts: Tensor, counts: Tensor) -> Tensor:
        shares = parts / counts.clamp_min(1)
        difference = shares[0] - shares[1]
        return difference @ gaussian_kernel(squared_distances(z), MMD.widths) @ difference
