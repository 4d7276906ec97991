"""Matching: methods that make features similarly distributed in all domains, or depend on the domain."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import LR, Draw, algorithm, batch_size, cross_entropy
from domainwise.algorithms.discrepancy import gaussian_kernel, squared_distances
from domainwise.algorithms.risk import ERM
from domainwise.protocol.spaces import Choice, LogInteger, LogUniform


class Matching(ERM):
    """mean_e R_e + gamma * (mean over pairs of domains of a distance between their features)."""

    needs_domains = 2
    needs_features = True
    moves_features = True
    domain_by_domain = True
    space = ERM.space | {"gamma": LogUniform(-1, 1, default=1.0), "batch_size": batch_size(minimum=2)}

    left: Tensor
    right: Tensor

    def setup(self) -> None:
        super().setup()
        pairs = torch.tensor(list(combinations(range(self.problem.domains), 2)))
        self.register_buffer("left", pairs[:, 0], persistent=False)
        self.register_buffer("right", pairs[:, 1], persistent=False)

    def distances(self, z: Tensor) -> Tensor:
        """One distance per pair of domains, from features [E, B, F]."""
        raise NotImplementedError

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.represent(x)
        risk = cross_entropy(self.classify(z), y).mean()
        return risk + self.hparams["gamma"] * self.distances(z).mean()


@algorithm
class CORAL(Matching):
    """Equal first and second moments: mean_e R_e + gamma mean_(i<j) [msd(mean_i, mean_j) + msd(cov_i, cov_j)].

    Paper: Sun & Saenko 2016, https://arxiv.org/abs/1607.01719.
    Note: msd is the mean of squared differences over entries; the means are DomainBed's addition to the covariances.
    Try it: first among the alternatives to ERM when domains differ in style (diversity shift).
    """

    def distances(self, z: Tensor) -> Tensor:
        means = z.mean(1, keepdim=True)
        centred = z - means
        covariance_gaps = self.gaps_by_samples if z[..., 0].numel() < z.shape[-1] else self.gaps_by_features
        return (means[self.left] - means[self.right]).square().mean((1, 2)) + covariance_gaps(centred)

    def gaps_by_features(self, centred: Tensor) -> Tensor:
        """msd(cov_i, cov_j) from the covariance matrices [E, F, F]."""
        covariances = centred.mT @ centred / (centred.shape[1] - 1)
        return (covariances[self.left] - covariances[self.right]).square().mean((1, 2))

    def gaps_by_samples(self, centred: Tensor) -> Tensor:
        """The same from the products of samples [EB, EB], a far smaller matrix where features outnumber samples.

        |cov_i - cov_j|^2 = |cov_i|^2 + |cov_j|^2 - 2 <cov_i, cov_j>, and (B-1)^2 <cov_i, cov_j> is the sum of the
        squared products of the samples of i and of j. The difference of large numbers is taken in float64.
        """
        _, batch, features = centred.shape
        samples = centred.double().flatten(0, 1)
        squares = (samples @ samples.T).square()
        products = squares.unflatten(1, centred.shape[:2]).sum(2).unflatten(0, centred.shape[:2]).sum(1)
        norms = products.diagonal()
        gaps = norms[self.left] + norms[self.right] - 2 * products[self.left, self.right]
        return (gaps / ((batch - 1) * features) ** 2).to(centred.dtype)


@algorithm
class MMD(Matching):
    """Equal distributions: mean_e R_e + gamma mean_(i<j) |mu_i - mu_j|^2, mu embedded by seven Gaussian kernels.

    Paper: Li et al. 2018, https://openaccess.thecvf.com/content_cvpr_2018/html/Li_Domain_Generalization_With_CVPR_2018_paper.html.
    Note: the penalty alone, without that paper's adversarial autoencoder, as in DomainBed.
    Try it: like CORAL, when more than means and covariances differ.
    """

    widths = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)

    def distances(self, z: Tensor) -> Tensor:
        kernel = gaussian_kernel(squared_distances(z.flatten(0, 1)), self.widths)
        means = kernel.unflatten(1, z.shape[:2]).mean(2).unflatten(0, z.shape[:2]).mean(1)
        return means.diagonal()[self.left] + means.diagonal()[self.right] - 2 * means[self.left, self.right]


@algorithm
class DANN(ERM):
    """Features that hide the domain from a discriminator: min_f max_d mean_e R_e(f) - lambda CE(d(z), e).

    Paper: Ganin et al. 2016, https://arxiv.org/abs/1505.07818.
    Note: as in DomainBed an iteration moves either the discriminator (`d_steps` in a row) or the network, not both; the
    gradient penalty, on each sample's gradient of its cross-entropy, belongs to the discriminator alone (in DomainBed
    it is part of the loss that the network ascends, too, times -lambda); `lr` and `weight_decay` are the network's.
    Try it: when the label distribution is the same in all domains.
    """

    needs_domains = 2
    needs_features = True
    moves_features = True
    conditional = False
    passes = 0.8
    space = ERM.space | {
        "lambda": LogUniform(-2, 2, default=1.0),
        "lr_d": LR,
        "weight_decay_d": LogUniform(-6, -2, default=0.0),
        "d_steps": LogInteger(0, 3, default=1, base=2, minimum=1),
        "gradient_penalty": LogUniform(-2, 1, default=0.0),
        "beta1": Choice((0.0, 0.5), default=0.5, maximum=0.999),
        "mlp_width": LogInteger(6, 10, default=256, base=2, minimum=1, maximum=10**5),
        "mlp_depth": Choice((3, 4, 5), default=3, minimum=2, maximum=100),
        "mlp_dropout": Choice((0.0, 0.1, 0.5), default=0.0, maximum=1.0),
    }

    domain_numbers: Tensor

    def setup(self) -> None:
        super().setup()
        hp, size = self.hparams, self.network.feature_size
        widths = [size, *[hp["mlp_width"]] * (hp["mlp_depth"] - 1), self.problem.domains]
        self.discriminator = perceptron(widths, hp["mlp_dropout"])
        self.embedding = nn.Embedding(self.problem.classes, size) if self.conditional else None
        self.register_buffer("domain_numbers", torch.arange(self.problem.domains).view(-1, 1), persistent=False)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        betas = (self.hparams["beta1"], 0.9)
        embedding = self.embedding.parameters() if self.embedding else ()
        return {
            "network": self.adam(self.network.parameters(), betas=betas),
            "discriminator": self.adam(
                [*self.discriminator.parameters(), *embedding], lr="lr_d", weight_decay="weight_decay_d", betas=betas
            ),
        }

    def schedule(self, step: int, draw: Draw) -> None:
        super().schedule(step, draw)
        turn = (step + 1) % (1 + self.hparams["d_steps"])
        self.phase = "discriminator" if turn < self.hparams["d_steps"] else "network"

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        if self.phase == "discriminator":
            with torch.no_grad():
                z = self.represent(x)
            penalised = self.hparams["gradient_penalty"] > 0
            return self.descend(self.domain_loss(z, y, penalised), "discriminator")
        z = self.represent(x)
        risk = cross_entropy(self.classify(z), y).mean()
        return self.descend(risk - self.hparams["lambda"] * self.domain_loss(z, y), "network")

    def domain_loss(self, z: Tensor, y: Tensor, penalised: bool = False) -> Tensor:
        """The discriminator's loss: cross-entropy of the domains that it predicts from features."""
        inputs = z if self.embedding is None else z + self.embedding(y)
        if penalised and not inputs.requires_grad:
            inputs.requires_grad_()
        losses = cross_entropy(self.discriminator(inputs), self.domain_numbers.expand(y.shape))
        loss = (self.sample_weights(y) * losses).sum()
        if not penalised:
            return loss
        (gradient,) = torch.autograd.grad(losses.sum(), inputs, create_graph=True)
        return loss + self.hparams["gradient_penalty"] * gradient.square().sum(-1).mean()

    def sample_weights(self, y: Tensor) -> Tensor:
        return torch.full_like(y, 1 / y.numel(), dtype=self.problem.low.dtype)


def perceptron(widths: Sequence[int], dropout: float) -> nn.Sequential:
    """Linear layers between these widths, with dropout and ReLU after all but the last."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Dropout(dropout), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


@algorithm
class CDANN(DANN):
    """DANN within classes: the discriminator sees z + embedding(y), and every class weighs the same.

    Paper: Li et al. 2018, https://openaccess.thecvf.com/content_ECCV_2018/html/Ya_Li_Deep_Domain_Generalization_ECCV_2018_paper.html.
    Note: in DomainBed's form, one conditional discriminator, balanced over the classes: all classes of the problem
    (DomainBed counts only up to the highest class in the batch).
    Try it: instead of DANN when domains differ in how often classes occur.
    """

    conditional = True

    def sample_weights(self, y: Tensor) -> Tensor:
        counts = F.one_hot(y.flatten(), self.problem.classes).sum(0)
        return 1 / (counts[y] * self.problem.classes).to(self.problem.low.dtype)


@algorithm
class MTL(ERM):
    """A classifier that sees the domain: sum_e R_e of classifier([z, v_e]), v_e = ema mean(z) + (1 - ema) v_e.

    Paper: Blanchard et al. 2021, https://arxiv.org/abs/1711.07910.
    Note: the loss is a sum over domains, as in DomainBed (earlier a mean: Adam hardly feels the factor, weight decay
    does). The classifier sees v_e: DomainBed's released code stores v_e but gives the classifier
    noise in its place, in training and in predictions. A prediction depends on its batch: a training domain blends it
    with its stored v_e, an unseen one uses the mean feature of the batch.
    Try it: when test images come in groups from one domain.
    """

    needs_domains = 2
    needs_features = True
    batch_dependent = True
    replaces_layers = True
    domain_by_domain = True
    space = ERM.space | {"ema": Choice((0.5, 0.9, 0.99, 1.0), default=0.99, maximum=1.0)}

    embeddings: Tensor

    def setup(self) -> None:
        super().setup()
        size = self.network.feature_size
        self.network.classifier = nn.Linear(2 * size, self.problem.classes)
        self.register_buffer("embeddings", torch.zeros(self.problem.domains, size))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.risks(x, y).sum()

    def logits(self, x: Tensor) -> Tensor:
        z = self.represent(x)
        v = self.blend(z.mean(1), self.embeddings)
        self.embeddings.copy_(v.detach())
        return self.classify(torch.cat([z, v[:, None].expand_as(z)], -1))

    def blend(self, mean: Tensor, stored: Tensor) -> Tensor:
        return self.hparams["ema"] * mean + (1 - self.hparams["ema"]) * stored

    def predict(self, x: Tensor, domain: int | None = None) -> Tensor:
        z = self.network.represent(x)
        v = z.mean(0) if domain is None else self.blend(z.mean(0), self.embeddings[domain])
        return self.network.classify(torch.cat([z, v.expand_as(z)], -1))
