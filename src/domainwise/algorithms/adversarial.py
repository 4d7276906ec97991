"""Adversarial training: one inner maximisation at three scopes.

    min_theta mean_e E_(x,y)~D_e loss(f(clamp(x + delta)), y),    delta an (approximate) argmax over |delta|_p <= eps

With a batch x of shape [E, B, C, H, W] (E domains, B samples of each) the perturbation delta has the shape

    method  delta             scope
    AT      [E, B, C, H, W]   one per sample, from ten ascent steps after a fresh start
    DAT     [E, 1, C, H, W]   one per domain, moved by one ascent step per iteration and kept between iterations
    UAT     [1, 1, C, H, W]   one for all samples, moved and kept like DAT's

All three share one ascent (`Adversarial.ascend`) and one projection per norm (`L2`, `LInf`). LDAT is the linearisation
of DAT, and EnsembleUAT is DAT without a shared network. The ascent turns dropout off and leaves BatchNorm's statistics
as they are, so eps = 0 is exactly ERM.
"""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from domainwise.algorithms.base import algorithm
from domainwise.algorithms.risk import ERM, Penalised
from domainwise.nets.modes import no_side_effects
from domainwise.protocol.spaces import Fixed, LogUniform


class L2:
    """The Euclidean ball, for each perturbation: dimensions 0 and 1 (domain, sample) number the perturbations."""

    @staticmethod
    def norm(v: Tensor) -> Tensor:
        return v.flatten(2).norm(dim=2).view(*v.shape[:2], *[1] * (v.ndim - 2)).clamp_min(1e-12)

    def direction(self, gradient: Tensor) -> Tensor:
        return gradient / self.norm(gradient)

    def project(self, delta: Tensor, eps: float) -> Tensor:
        return delta * (eps / self.norm(delta)).clamp(max=1)


class LInf:
    """The cube |delta|_inf <= eps."""

    def direction(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def project(self, delta: Tensor, eps: float) -> Tensor:
        return delta.clamp(-eps, eps)


BALLS: dict[str, L2 | LInf] = {"l2": L2(), "linf": LInf()}


class Adversarial(ERM):
    """The perturbation and its ascent, which all scopes share."""

    reads_inputs = True
    space = ERM.space | {
        "eps": LogUniform(-1, 1, default=1.0),
        "alpha": LogUniform(-2, 0, default=0.1),
        "norm": Fixed("l2", options=("l2", "linf")),
        "start": Fixed("random", options=("random", "zero")),
        "loss_cap": Fixed(None),
        "clip_low": Fixed(None, minimum=-float("inf")),
        "clip_high": Fixed(None, minimum=-float("inf")),
    }

    low: Tensor
    high: Tensor

    def setup(self) -> None:
        super().setup()
        for name, legal in (("low", self.problem.low), ("high", self.problem.high)):
            clip = self.hparams[f"clip_{name}"]
            self.register_buffer(name, legal if clip is None else torch.full_like(legal, clip), persistent=False)
        self.ball = BALLS[self.hparams["norm"]]

    def initial_delta(self, *scope: int) -> Tensor:
        """Perturbations [*scope, ...] before the first ascent step: zero, or uniform in [-eps, eps] and projected."""
        shape = (*scope, *self.problem.shape)
        if self.hparams["start"] == "zero":
            return self.problem.low.new_zeros(shape)
        eps = self.hparams["eps"]
        return self.ball.project((2 * self.random(*shape) - 1) * eps, eps)

    def perturb(self, x: Tensor, delta: Tensor) -> Tensor:
        """x + delta within the legal range of the input."""
        return torch.clamp(x + delta, self.low, self.high)

    def ascend(self, x: Tensor, y: Tensor, delta: Tensor, steps: int) -> Tensor:
        """Steps of length alpha up the summed loss, each followed by the projection onto the ball."""
        for _ in range(steps):
            delta = delta.detach().requires_grad_()
            with no_side_effects(self.network):
                losses = self.losses(self.perturb(x, delta), y)
            if self.hparams["loss_cap"] is not None:
                losses = losses.clamp(0, self.hparams["loss_cap"])
            (gradient,) = torch.autograd.grad(losses.sum(), delta)
            uphill = delta.detach() + self.hparams["alpha"] * self.ball.direction(gradient)
            delta = self.ball.project(uphill, self.hparams["eps"])
        return delta


@algorithm
class AT(Adversarial):
    """Sample-wise adversarial training: mean_e E_e max_(|delta_x| <= eps) loss(x + delta_x), ten ascent steps.

    Paper: Madry et al. 2018, https://arxiv.org/abs/1706.06083.
    Note: initial perturbation, norm and projection are per sample.
    Try it: when the unseen domain differs by noise or blur; a step has eleven forward-backward passes.
    """

    passes = 11.0
    steps = 10

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        delta = self.ascend(x, y, self.initial_delta(*x.shape[:2]), self.steps)
        return self.risks(self.perturb(x, delta), y).mean()


class PersistentPerturbation(Adversarial):
    """Perturbations that are kept between iterations, with one ascent step per iteration."""

    passes = 2.0

    delta: Tensor

    def setup(self) -> None:
        super().setup()
        self.register_buffer("delta", self.initial_delta(*self.scope()))

    def scope(self) -> tuple[int, int]:
        """Dimensions 0 and 1 of delta: the number of domains, or 1, and of samples, or 1."""
        raise NotImplementedError

    def perturbed_risks(self, x: Tensor, y: Tensor, delta: Tensor) -> Tensor:
        """One ascent step of delta, in place; returns the perturbed risks R_e [E]."""
        delta.copy_(self.ascend(x, y, delta, steps=1))
        return self.risks(self.perturb(x, delta), y)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.perturbed_risks(x, y, self.delta).mean()


@algorithm
class UAT(PersistentPerturbation):
    """Universal adversarial training: max_(|delta| <= eps) mean_e R_e(x + delta), one perturbation for all data.

    Paper: Shafahi et al. 2020, https://arxiv.org/abs/1811.11304.
    Try it: to see what domain-wise perturbations add to universal ones.
    """

    def scope(self) -> tuple[int, int]:
        return (1, 1)


@algorithm
class DAT(PersistentPerturbation):
    """Domain-wise adversarial training: mean_e max_(|delta_e| <= eps) R_e(x + delta_e), one perturbation per domain.

    Paper: Xin et al. 2023, https://arxiv.org/abs/2212.09082.
    Note: with one training domain it is UAT. `update=joint` makes one step on the mean over domains, as in practice;
    `literal` one step per domain in turn, as Algorithm 1 is written. On NICO the paper sets `loss_cap=2`.
    Try it: when every domain has a look (background, camera, scanner) that says nothing about the label.
    """

    space = PersistentPerturbation.space | {"update": Fixed("joint", options=("joint", "literal"))}

    def scope(self) -> tuple[int, int]:
        return (self.problem.domains, 1)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        if self.hparams["update"] == "joint":
            return super().step(x, y)
        domains = [slice(e, e + 1) for e in range(self.problem.domains)]
        losses = [self.descend(self.perturbed_risks(x[e], y[e], self.delta[e]).mean(), "network") for e in domains]
        return torch.stack(losses).mean()


@algorithm
class LDAT(Penalised):
    """Linearised DAT with delta = x: mean_e [R_e + lambda (E_e <grad_x loss, x>)^2].

    Paper: the Remark of Xin et al. 2023, https://arxiv.org/abs/2212.09082, at the level of domains.
    Note: without biases and with piecewise linear activations this is IRM's penalty; lambda and anneal are as for IRM.
    Try it: to study how IRM and DAT are related.
    """

    reads_inputs = True
    differentiates_twice = True
    passes = 3.0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        losses = self.losses(x, y)
        (gradient,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
        products = (gradient * x.detach()).flatten(2).sum(2)
        return losses.mean() + self.weight * products.mean(1).square().mean()


def log_mean_probability(logits: Sequence[Tensor]) -> Tensor:
    """log of the mean of softmax(logits), over several [..., classes]: itself logits of that mean."""
    return torch.stack([one.log_softmax(-1) for one in logits]).logsumexp(0) - math.log(len(logits))


class Ensemble(nn.Module):
    """Several networks as one: the logarithm of their mean probability."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return log_mean_probability([member(x) for member in self.members])

    def represent(self, x: Tensor) -> Tensor:
        """The concatenated features of all members."""
        return torch.cat([getattr(member, "represent", member)(x) for member in self.members], 1)


@algorithm
class EnsembleUAT(DAT):
    """One UAT model per training domain: sum_e max_(|delta_e| <= eps) R_e(f_e(x + delta_e)); their mean decides.

    Paper: the comparison of Table 4 of Xin et al. 2023, https://arxiv.org/abs/2212.09082.
    Note: this is DAT with nothing shared; the members start from equal weights. Probabilities are averaged, since a
    majority vote of two can tie.
    Try it: to see what sharing one network adds.
    """

    passes = 2.3
    space = {name: parameter for name, parameter in DAT.space.items() if name != "update"}

    def setup(self) -> None:
        self.network = Ensemble([copy.deepcopy(self.network) for _ in range(self.problem.domains)])
        super().setup()

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        return self.descend(self.perturbed_risks(x, y, self.delta).sum(), "network") / self.problem.domains

    def logits(self, x: Tensor) -> Tensor:
        """Each member sees one domain."""
        return torch.stack([member(part) for member, part in zip(self.network.members, x, strict=True)])
