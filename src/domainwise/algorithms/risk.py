"""Risks: methods that weigh or penalise the domains' average losses R_e."""

import math
from dataclasses import replace
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor, softmax

from domainwise.algorithms.base import LARGEST_BATCH, Algorithm, Draw, algorithm, batch_size, cross_entropy, restart
from domainwise.algorithms.discrepancy import gaussian_kernel
from domainwise.protocol.spaces import LogInteger, LogUniform, Uniform, UniformInteger


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
        penalties = irm_penalties(logits, y)  # before the risks: gradients are added in this order
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
    domain_by_domain = True
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
    Try it: when a few easy features are learned first and suppress the others; it costs nothing.
    """

    space = ERM.space | {"penalty": LogUniform(-5, -1, default=0.1)}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.logits(x)
        return cross_entropy(logits, y).mean() + self.hparams["penalty"] * logits.square().mean()


class Delayed(ERM):
    """ERM for `anneal` steps; then Adam restarts with the learning rate `anneal_lr`, to descend `late_loss`."""

    needs_domains = 2
    begins_at = "anneal"

    def late_loss(self, losses: Tensor) -> Tensor:
        """From the anneal step on, by per-sample losses [E, B]."""
        raise NotImplementedError

    def schedule(self, step: int, draw: Draw) -> None:
        super().schedule(step, draw)
        late = step >= self.hparams["anneal"]
        self.phase = "late" if late else "train"
        for group in self.optimizers["network"].param_groups:
            group["lr"] = group.get("factor", 1.0) * self.hparams["anneal_lr" if late else "lr"]
        if step == self.hparams["anneal"]:
            restart(self.optimizers["network"])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        losses = self.losses(x, y)
        return self.late_loss(losses) if self.phase == "late" else losses.mean()


@algorithm
class EQRM(Delayed):
    """A high quantile of the risks: F^-1(alpha), F(r) = mean_e Phi((r - R_e) / h), h = 1.06 std_e(R_e) E^(-1/5).

    Paper: Eastwood et al. 2022, https://arxiv.org/abs/2207.09944.
    Note: ERM before the anneal step, where Adam restarts with another learning rate. The quantile is found by bisection
    and its derivative is exact (DomainBed's is that of the ends of the interval it begins with). In DomainBed's random
    search the anneal step is not a whole number, so Adam never restarts there and keeps its learning rate.
    Try it: with many training domains, to do well on most new ones rather than on average.
    """

    domain_by_domain = True
    space = ERM.space | {
        "quantile": Uniform(0.5, 0.99, default=0.75, minimum=1e-3, maximum=0.999),
        "anneal": LogInteger(2.5, 3.5, default=2500),
        "anneal_lr": LogUniform(-7, -5, default=1e-6),
    }

    def late_loss(self, losses: Tensor) -> Tensor:
        return kernel_quantile(losses.mean(1), self.hparams["quantile"])


def kernel_quantile(values: Tensor, alpha: float) -> Tensor:
    """The alpha-quantile of a density of Gaussian kernels over values [E], as wide as is best for Gaussian values."""
    width = 1.06 * values.var().clamp_min(1e-16).sqrt() * len(values) ** -0.2
    with torch.no_grad():
        shift = width * NormalDist().inv_cdf(alpha)
        low, high = values.min() + shift, values.max() + shift
        for _ in range(32):
            middle = (low + high) / 2
            below = torch.special.ndtr((middle - values) / width).mean() < alpha
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        quantile = (low + high) / 2
        density = torch.exp(-((quantile - values) / width).square() / 2).mean() / (width * math.sqrt(2 * math.pi))
    # A Newton step from where it ends hardly moves it, and has the derivative of the implicit function.
    return quantile - (torch.special.ndtr((quantile - values) / width).mean() - alpha) / density


@algorithm
class RDM(Delayed):
    """Equal risk distributions: mean_e R_e + lambda |mu_w - mu|^2 + nu (Var(l_w) + Var(l)), w the worst domain.

    l are the losses of all samples and l_w those of domain w; mu and mu_w embed them by eight Gaussian kernels.

    Paper: Nguyen et al. 2024, https://arxiv.org/abs/2310.18598.
    Note: lambda is `penalty` and nu is `variance`. ERM before the anneal step, where Adam restarts with another
    learning rate. DomainBed has other values on some datasets of photographs.
    Try it: instead of VREx when the spread of losses within domains matters too; it needs large batches.
    """

    widths = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)
    space = ERM.space | {
        "penalty": Uniform(0.1, 10.0, default=5.0),
        "variance": Uniform(0.001, 0.007, default=0.004),
        "anneal": UniformInteger(800, 2700, default=1500),
        "anneal_lr": Uniform(8e-6, 2e-5, default=1.5e-5),
        "batch_size": replace(
            batch_size(minimum=2), image=UniformInteger(70, 100, default=88, minimum=2, maximum=LARGEST_BATCH)
        ),
    }

    def late_loss(self, losses: Tensor) -> Tensor:
        risks, every = losses.mean(1), losses.flatten()
        worst = losses.index_select(0, risks.argmax(0, keepdim=True)).squeeze(0)
        points = torch.cat([worst, every])
        shares = torch.cat([torch.full_like(worst, 1 / len(worst)), torch.full_like(every, -1 / len(every))])
        kernel = gaussian_kernel((points[:, None] - points).square(), self.widths)
        spread = worst.var() + every.var()
        return risks.mean() + self.hparams["penalty"] * (shares @ kernel @ shares) + self.hparams["variance"] * spread


def irm_penalties(logits: Tensor, y: Tensor) -> Tensor:
    """IRM's penalty [E]: the product of the derivatives on the even and the odd half of a domain's batch."""
    slopes = scale_derivative(logits, y)
    return slopes[:, ::2].mean(1) * slopes[:, 1::2].mean(1)


def scale_derivative(logits: Tensor, y: Tensor) -> Tensor:
    """d/dw of the cross-entropy of w * logits at w = 1, per sample [E, B]: <softmax(l) - onehot(y), l>."""
    expected = (softmax(logits, -1) * logits).sum(-1)
    return expected - logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)
