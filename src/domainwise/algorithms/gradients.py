"""Gradients: methods that make the domains' gradients g_e = grad R_e agree, or follow only what they agree on."""

import torch
from torch import Tensor

from domainwise.algorithms.base import algorithm, cross_entropy
from domainwise.algorithms.risk import ERM, Penalised
from domainwise.protocol.spaces import Choice, LogUniform, Uniform, UniformInteger


@algorithm
class Fishr(Penalised):
    """Gradients of equal variance: mean_e [R_e + lambda msd(v_e, mean_e v_e)], v_e the classifier's gradient variances.

    v_e has one number per weight of the classifier: the variance, over the samples of domain e, of its gradient.

    Paper: Rame et al. 2022, https://arxiv.org/abs/2109.02934.
    Note: msd is the mean of squared differences over entries. As in DomainBed v_e is the batch's plus ema / (1 - ema)
    times a moving average of earlier ones, and lambda is 0 before the anneal step, where Adam restarts. The gradient of
    a sample is the product of d = softmax - onehot and z, so the variance needs no gradient per sample.
    Try it: when domains agree in the mean of their gradients but not in their spread; it costs hardly more than ERM.
    """

    needs_domains = 2
    needs_features = True
    before = 0.0
    begins_at = "anneal"
    space = Penalised.space | {
        "penalty": LogUniform(1, 4, default=1000.0),
        "anneal": UniformInteger(0, 5000, default=1500),
        "ema": Uniform(0.9, 0.99, default=0.95, maximum=0.9999),
    }

    variances: Tensor

    def setup(self) -> None:
        super().setup()
        entries = self.problem.classes * (self.network.feature_size + 1)
        self.register_buffer("variances", torch.zeros(self.problem.domains, entries))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.represent(x)
        logits = self.classify(z)
        ema = self.hparams["ema"]
        averages = ema * self.variances + (1 - ema) * gradient_variances(z, logits, y)
        self.variances.copy_(averages.detach())
        corrected = averages / (1 - ema)  # so that the penalty's gradient does not depend on ema
        penalty = (corrected - corrected.mean(0)).square().mean()
        return cross_entropy(logits, y).mean() + self.weight * penalty


def gradient_variances(z: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """The variance over samples of the gradient of each of a linear classifier's weights and biases [E, K (F + 1)].

    A sample's gradient is d z^T for the weights and d for the biases, that is d [z, 1]^T.
    """
    d = logit_gradients(logits, y)
    inputs = torch.cat([z, torch.ones_like(z[..., :1])], -1)
    mean, square = d.mT @ inputs / d.shape[1], d.square().mT @ inputs.square() / d.shape[1]
    return (square - mean.square()).flatten(1)


def logit_gradients(logits: Tensor, y: Tensor) -> Tensor:
    """The gradient of each sample's cross-entropy by its logits: softmax - onehot(y), [..., classes]."""
    classes = torch.arange(logits.shape[-1], device=y.device)
    return logits.softmax(-1) - (y.unsqueeze(-1) == classes).to(logits.dtype)


@algorithm
class Fish(ERM):
    """Gradients with large inner products: theta += m (theta' - theta), theta' after one Adam step per domain on R_e.

    To first order this ascends the inner products of the domains' gradients.

    Paper: Shi et al. 2022, https://arxiv.org/abs/2104.09937.
    Note: a random order of the domains every step, as in the paper (DomainBed's is fixed). The moments of the inner
    Adam are kept between steps. BatchNorm's running statistics move by m, too. The loss returned is the mean of the
    risks on the way.
    Try it: with several training domains of equal size, as a first-order alternative to MLDG.
    """

    needs_domains = 2
    passes = 1.5
    space = ERM.space | {"meta_lr": Choice((0.05, 0.1, 0.5), default=0.5, maximum=1.0)}

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        order = self.shuffle(len(x))
        x, y = x[order], y[order]
        moving = [*self.network.parameters(), *(b for b in self.network.buffers() if b.is_floating_point())]
        before = [tensor.detach().clone() for tensor in moving]
        domains = [slice(e, e + 1) for e in range(len(x))]
        losses = [self.descend(self.risks(x[e], y[e]).mean(), "network") for e in domains]
        with torch.no_grad():
            for tensor, start in zip(moving, before, strict=True):
                tensor.copy_(start + self.hparams["meta_lr"] * (tensor - start))
        return torch.stack(losses).mean()


class DomainGradients(ERM):
    """Methods with one gradient per domain, each from a pass of its own: BatchNorm sees one domain at a time."""

    needs_domains = 2

    def domain_gradients(
        self, x: Tensor, y: Tensor, differentiable: bool = False
    ) -> tuple[Tensor, dict[torch.nn.Parameter, Tensor]]:
        """The risks R_e [E], and for each parameter the gradients of the domains [E, ...]."""
        parameters = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        risks, gradients = [], []
        for e in range(len(x)):
            risks.append(self.risks(x[e : e + 1], y[e : e + 1]).mean())
            gradients.append(
                torch.autograd.grad(risks[e], parameters, create_graph=differentiable, materialize_grads=True)
            )
        stacked = [torch.stack(of_domains) for of_domains in zip(*gradients, strict=True)]
        return torch.stack(risks), dict(zip(parameters, stacked, strict=True))


class MaskedGradients(DomainGradients):
    """One Adam step along the mean gradient times a mask; each tensor's is divided by the mask's mean."""

    passes = 1.7

    def mask(self, gradients: Tensor) -> Tensor:
        """How much of each entry to follow, in [0, 1], from the gradients of the domains [E, ...]."""
        raise NotImplementedError

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        risks, gradients = self.domain_gradients(x, y)
        for parameter, of_domains in gradients.items():
            mask = self.mask(of_domains)
            followed = mask * of_domains.mean(0) / (1e-10 + mask.mean())
            parameter.grad = torch.empty_like(parameter).copy_(followed)  # in the parameter's layout, as Adam reads it
        self.optimizers["network"].step()
        return risks.detach().mean()


def agreement(gradients: Tensor) -> Tensor:
    """|mean_e sign g_e|: 1 where all domains pull the same way."""
    return gradients.sign().mean(0).abs()


@algorithm
class ANDMask(MaskedGradients):
    """Only where domains agree: Adam along m mean_e g_e / mean(m), m = 1 where |mean_e sign g_e| >= tau, else 0.

    Paper: Parascandolo et al. 2021, https://arxiv.org/abs/2009.00329.
    Note: the share of entries kept, mean(m), is that of each weight tensor. With tau 1 all domains must agree.
    Try it: when every domain has shortcuts of its own; with many domains lower tau.
    """

    space = ERM.space | {"tau": Uniform(0.5, 1.0, default=1.0, maximum=1.0)}

    def mask(self, gradients: Tensor) -> Tensor:
        return (agreement(gradients) >= self.hparams["tau"]).to(gradients.dtype)


@algorithm
class SANDMask(MaskedGradients):
    """A smooth mask: Adam along m mean_e g_e / mean(m), m = max(0, tanh(k (|mean_e sign g_e| - tau) / Var_e(g_e))).

    Paper: Shahtalebi et al. 2021, https://arxiv.org/abs/2106.02266.
    Note: the default of tau is 0.5, the middle of DomainBed's range: DomainBed's default, 1, masks every gradient, and
    nothing is learned.
    Try it: like ANDMask, when agreement in sign alone lets too much through.
    """

    passes = 2.1
    space = ERM.space | {
        "tau": Uniform(0.0, 1.0, default=0.5, maximum=1.0),
        "k": LogUniform(-3, 5, default=10.0),
    }

    def mask(self, gradients: Tensor) -> Tensor:
        excess = agreement(gradients) - self.hparams["tau"]
        return torch.tanh(self.hparams["k"] * excess / variance(gradients).clamp_min(1e-30)).clamp_min(0)


def variance(gradients: Tensor) -> Tensor:
    """The unbiased variance over domains: gradients.var(0), which torch computes slowly on a CPU for so few domains."""
    return (gradients - gradients.mean(0)).square().sum(0) / (len(gradients) - 1)


@algorithm
class IGA(DomainGradients):
    """Aligned gradients: mean_e R_e + lambda sum_e |g_e - mean_e g_e|^2.

    Paper: Koyama & Yamaguchi 2021, https://arxiv.org/abs/2008.01883.
    Note: over all weights, by second derivatives.
    Try it: on small networks, when one set of weights should be optimal in every domain.
    """

    differentiates_twice = True
    passes = 4.6
    space = ERM.space | {"penalty": LogUniform(1, 5, default=1000.0)}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        risks, gradients = self.domain_gradients(x, y, differentiable=True)
        spread = [(g - g.mean(0)).square().sum() for g in gradients.values()]
        return risks.mean() + self.hparams["penalty"] * torch.stack(spread).sum()
