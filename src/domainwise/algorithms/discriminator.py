"""Discriminators beyond DANN's: of features from noise, and of what is left of features without the domain's part."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import algorithm, batch_size, cross_entropy
from domainwise.algorithms.contrast import supervised_contrast
from domainwise.algorithms.match import DANN, perceptron
from domainwise.algorithms.risk import ERM
from domainwise.protocol.spaces import ByScale, Choice, Fixed, LogUniform, Uniform

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


@algorithm
class URM(ERM):
    """Uniform features: mean_e R_e - lambda E[log D(z)], where D descends -E[log D(u)] - lambda E[log(1 - D(z))].

    z are the features after an activation, u is uniform noise in its range and D a discriminator with an Adam of its
    own.

    Paper: Krishnamachari et al. 2024, https://openreview.net/forum?id=PgLbS5yp8n.
    Note: as in DomainBed the range of ReLU counts as [0, 1]. The discriminator's step follows the network's, on the
    same features.
    Try it: when features concentrate on frequent patterns of the training data.
    """

    needs_features = True
    passes = 1.2
    space = ERM.space | {
        "lambda": Uniform(0.0, 0.2, default=0.1),
        "activation": Choice(("tanh", "relu"), default="tanh"),
        "hidden_layers": Choice((1, 2, 3), default=1, maximum=100),
        "lr_d": ByScale(small=LogUniform(-5.5, -3.5, default=1e-3), image=LogUniform(-6, -4.5, default=5e-5)),
    }

    def setup(self) -> None:
        super().setup()
        # At the end of the features, so that whoever asks the network for features gets those that D sees.
        self.network.dropout = nn.Sequential(self.network.dropout, ACTIVATIONS[self.hparams["activation"]]())
        layers: list[nn.Module] = [nn.Linear(self.network.feature_size, 100), nn.LeakyReLU()]
        for _ in range(self.hparams["hidden_layers"]):
            layers += [nn.Linear(100, 100), nn.LeakyReLU()]
        self.discriminator = nn.Sequential(*layers, nn.Linear(100, 1))

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {
            "network": self.adam(self.network.parameters()),
            "discriminator": self.adam(self.discriminator.parameters(), lr="lr_d"),
        }

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.represent(x)
        risk = cross_entropy(self.classify(z), y).mean()
        loss = self.descend(risk + self.hparams["lambda"] * F.softplus(-self.discriminator(z)).mean(), "network")
        real, fake = self.discriminator(self.uniform_noise(z)), self.discriminator(z.detach())
        self.descend(F.softplus(-real).mean() + self.hparams["lambda"] * F.softplus(fake).mean(), "discriminator")
        return loss

    def uniform_noise(self, z: Tensor) -> Tensor:
        noise = self.random(*z.shape)
        return 2 * noise - 1 if self.hparams["activation"] == "tanh" else noise


@algorithm
class ADRMX(DANN):
    """Features without the domain's: R(c(z)) + R(c'(z-d)) + CE(k(d), e) + M + S(z) + S(z-d) - lambda CE(D(z-d), e).

    z are the network's features and c its classifier; d are those of a second network, whose classifier k predicts
    the domain. From z-d, the discriminator D should not recognise the domain, and the classifier c' should predict
    the class. S is a supervised contrastive loss. M = R(c(remix)) on one sample per class, whose remix is z-d of
    one sample and d of another of the class, from another domain.

    Paper: Demirel et al. 2023, https://arxiv.org/abs/2308.06624.
    Note: predictions are c(z). As in DANN an iteration moves either D (`d_steps` in a row) or the rest. Both networks
    start from the same weights. The remix is the paper's: DomainBed's code looks for samples of a class by their place
    among those of the class, not in the batch, and does not ask for another domain. S is that of Khosla et al. with
    temperature 0.07, averaged over samples that have another of their class; vectors shorter than 0.01 stay short.
    Try it: when domain-specific features help in their own domain; it takes twice the memory.
    """

    passes = 1.9
    space = ERM.space | {
        "lr": ByScale(
            small=Choice((5e-4, 1e-3, 2e-3, 3e-3), default=3e-3), image=Choice((2e-5, 3e-5, 4e-5, 5e-5), default=3e-5)
        ),
        "weight_decay": Fixed(0.0),
        "batch_size": batch_size(minimum=1),
        "lambda": Fixed(0.75),
        "d_steps": Fixed(2, whole=True, minimum=1, maximum=10**6),
        "beta1": Fixed(0.5, maximum=0.999),
        "mlp_width": Fixed(256, whole=True, minimum=1, maximum=10**5),
        "mlp_depth": Choice((8, 9, 10), default=9, minimum=2, maximum=100),
        "mlp_dropout": Fixed(0.0, maximum=1.0),
    }

    def setup(self) -> None:
        super().setup()
        size, classes, domains = self.network.feature_size, self.problem.classes, self.problem.domains
        self.domain_network = copy.deepcopy(self.network)
        self.domain_network.classifier = tapering(size, domains)
        self.network.classifier = tapering(size, classes)
        self.invariant_classifier = tapering(size, classes)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        betas = (self.hparams["beta1"], 0.9)
        rest = nn.ModuleList([self.network, self.domain_network, self.invariant_classifier])
        return {
            "network": self.adam(rest.parameters(), betas=betas),
            "discriminator": self.adam(self.discriminator.parameters(), betas=betas),
        }

    def domain_features(self, x: Tensor) -> Tensor:
        """Features [E, B, F] of the second network."""
        return self.domain_network.represent(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        if self.phase == "discriminator":
            with torch.no_grad():
                invariant = self.represent(x) - self.domain_features(x)
            return self.descend(self.domain_loss(invariant, y), "discriminator")
        z, d = self.represent(x), self.domain_features(x)
        domains = self.domain_numbers.expand(y.shape)
        risk = cross_entropy(self.classify(z), y).mean() + cross_entropy(self.invariant_classifier(z - d), y).mean()
        domain_risk = cross_entropy(self.domain_network.classify(d), domains).mean()
        contrast = supervised_contrast(z, y) + supervised_contrast(z - d, y)
        hidden = self.hparams["lambda"] * self.domain_loss(z - d, y)
        return self.descend(risk + domain_risk + self.remix_risk(z - d, d, y) + contrast - hidden, "network")

    def remix_risk(self, invariant: Tensor, d: Tensor, y: Tensor) -> Tensor:
        """The sum over classes that have two domains in the batch, divided by the number of all classes."""
        invariant, d, labels = invariant.flatten(0, 1), d.flatten(0, 1), y.flatten()
        domains = self.domain_numbers.expand(y.shape).flatten()
        classes = torch.arange(self.problem.classes, device=y.device)
        keys = self.random(2, len(labels), dtype=torch.float64)
        members = labels == classes[:, None]  # [classes, samples]
        first = keys[0].expand(members.shape).masked_fill(~members, -1).argmax(1)
        abroad = members & (domains != domains[first][:, None])
        second = keys[1].expand(members.shape).masked_fill(~abroad, -1).argmax(1)
        losses = F.cross_entropy(self.network.classify(invariant[first] + d[second]), classes, reduction="none")
        return losses.masked_fill(~abroad.any(1), 0).sum() / len(classes)


def tapering(inputs: int, outputs: int) -> nn.Sequential:
    """DomainBed's nonlinear classifier: two hidden layers of a half and a quarter of the inputs, or of the outputs."""
    return perceptron([inputs, max(inputs // 2, outputs), max(inputs // 4, outputs), outputs], dropout=0.0)
