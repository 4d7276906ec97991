"""Style and self-challenging: methods that train without the most predictive features, or with changed styles."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import algorithm, cross_entropy
from domainwise.algorithms.risk import ERM
from domainwise.core.errors import UserError
from domainwise.protocol.spaces import LogUniform, Uniform


@algorithm
class RSC(ERM):
    """Without its favourite features: mean R_e with the top fraction f of each sample's features muted.

    A feature's rank is its gradient of the true class's logit; of the samples only the fraction b whose confidence
    changes most stays muted.

    Paper: Huang et al. 2020, https://arxiv.org/abs/2007.02454.
    Note: signed gradients and percentiles over the whole batch, as in DomainBed.
    Try it: when a network settles on one salient cue.
    """

    needs_features = True
    space = ERM.space | {
        "f_drop": Uniform(0, 0.5, default=1 / 3, maximum=1.0),
        "b_drop": Uniform(0, 0.5, default=1 / 3, maximum=1.0),
    }

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.represent(x)
        z = z if z.requires_grad else z.detach().requires_grad_()  # features that do not learn are ranked as well
        logits = self.classify(z)
        labels = y.unsqueeze(-1)
        gradient = torch.autograd.grad(logits.gather(-1, labels).sum(), z, retain_graph=True)[0]
        kept = gradient < quantile(gradient, 1 - self.hparams["f_drop"])
        with torch.no_grad():
            muted = self.classify(z * kept)
            change = (logits.softmax(-1) - muted.softmax(-1)).gather(-1, labels).squeeze(-1)
            unchanged = change < quantile(change.flatten(), 1 - self.hparams["b_drop"])
        return cross_entropy(self.classify(z * (kept | unchanged.unsqueeze(-1))), y).mean()


def quantile(values: Tensor, share: float) -> Tensor:
    """torch.quantile along the last dimension [..., 1], by the two values it lies between: sorting all takes longer."""
    count = values.shape[-1]
    place = share * (count - 1)
    below = min(int(place), max(count - 2, 0))
    ends = values.topk(count - below, sorted=False).values.topk(min(count, 2), largest=False).values
    return torch.lerp(ends[..., :1], ends[..., -1:], place - below)


@algorithm
class SagNet(ERM):
    """Content without style: mean R_e on features whose style is swapped, and features that hide the style.

    A content branch c sees features normalised and given other statistics (mean and variance over the features, a
    random share of another sample's); a style branch s sees another sample's content with the sample's own statistics.
    Then the features move so that s fails: weight * CE(uniform, s).

    Paper: Nam et al. 2021, https://arxiv.org/abs/1910.11645.
    Note: as in DomainBed, on the final features, with an Adam for features, content and style each.
    Try it: when domains differ in texture and colour rather than in shape.
    """

    needs_features = True
    moves_features = True
    passes = 3.0
    space = ERM.space | {"adversarial_weight": LogUniform(-2, 1, default=0.1)}

    def setup(self) -> None:
        super().setup()
        if not any(parameter.requires_grad for parameter in self.network.features.parameters()):
            raise UserError("SagNet trains features, but this network has no trainable features: choose another")
        self.style = nn.Linear(self.network.feature_size, self.problem.classes)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {
            "features": self.adam(self.network.features.parameters()),
            "content": self.adam(self.network.classifier.parameters()),
            "style": self.adam(self.style.parameters()),
        }

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = x.flatten(0, 1), y.flatten()
        content = F.cross_entropy(self.network.classify(self.restyled(self.network.represent(x))), y)
        content = self.descend(content, "features", "content")
        style = F.cross_entropy(self.style(self.recontented(self.network.represent(x))), y)
        self.descend(style, "style")
        logits = self.style(self.recontented(self.network.represent(x)))
        adversarial = -self.hparams["adversarial_weight"] * F.log_softmax(logits, -1).mean()
        self.descend(adversarial, "features")
        return content

    def restyled(self, z: Tensor) -> Tensor:
        """The sample's content with a random share of another sample's style."""
        content, mean, var = statistics(z)
        share, other = self.random(len(z), 1), self.shuffle(len(z))
        mean = share * mean + (1 - share) * mean[other]
        var = share * var + (1 - share) * var[other]
        return content * (var + 1e-5).sqrt() + mean

    def recontented(self, z: Tensor) -> Tensor:
        """Another sample's content, without gradient, with this sample's style."""
        content, mean, var = statistics(z)
        return content[self.shuffle(len(z))].detach() * (var + 1e-5).sqrt() + mean


def statistics(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features [N, F] as content (normalised over the features) and style (their mean and variance, [N, 1])."""
    mean, var = z.mean(-1, keepdim=True), z.var(-1, keepdim=True)
    return (z - mean) / (var + 1e-5).sqrt(), mean, var
