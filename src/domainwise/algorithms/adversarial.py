"""Adversarial training: one inner maximisation at three scopes.

    min_theta mean_e E_(x,y)~D_e loss(f(clamp(x + delta)), y),    delta an (approximate) argmax over |delta|_p <= eps

With a batch x of shape [E, B, ...] the perturbation has shape

    method  delta         scope
    AT      [E, B, ...]   every sample its own, ten steps from a fresh start
    DAT     [E, 1, ...]   one per domain, one step per iteration, kept between iterations
    UAT     [1, 1, ...]   one for everything, one step per iteration, kept between iterations

The ascent runs on the network without dropout and leaves BatchNorm's statistics alone, so eps = 0 is ERM exactly.
"""

import torch
from torch import Tensor

from domainwise.algorithms.base import algorithm
from domainwise.algorithms.risk import ERM
from domainwise.nets.modes import no_side_effects
from domainwise.protocol.spaces import Fixed, LogUniform


class L2:
    """The Euclidean ball, per perturbation: dimensions 0 and 1 (domain, sample) count perturbations."""

    @staticmethod
    def norm(v: Tensor) -> Tensor:
        return v.flatten(2).norm(dim=2).view(*v.shape[:2], *[1] * (v.ndim - 2)).clamp_min(1e-12)

    def direction(self, gradient: Tensor) -> Tensor:
        return gradient / self.norm(gradient)

    def project(self, delta: Tensor, eps: float) -> Tensor:
        return delta * (eps / self.norm(delta)).clamp(max=1)


class LInf:
    """The cube."""

    def direction(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def project(self, delta: Tensor, eps: float) -> Tensor:
        return delta.clamp(-eps, eps)


BALLS: dict[str, L2 | LInf] = {"l2": L2(), "linf": LInf()}


class Adversarial(ERM):
    """The ascent that the three scopes share."""

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
            given = self.hparams[f"clip_{name}"]
            self.register_buffer(name, legal if given is None else torch.full_like(legal, given), persistent=False)
        self.ball = BALLS[self.hparams["norm"]]

    def fresh(self, *scope: int) -> Tensor:
        """The start of prod(scope) perturbations: zero, or uniform in [-eps, eps] and projected."""
        shape = (*scope, *self.problem.shape)
        if self.hparams["start"] == "zero":
            return self.problem.low.new_zeros(shape)
        eps = self.hparams["eps"]
        return self.ball.project((2 * self.random(*shape) - 1) * eps, eps)

    def perturb(self, x: Tensor, delta: Tensor) -> Tensor:
        return torch.clamp(x + delta, self.low, self.high)

    def ascend(self, x: Tensor, y: Tensor, delta: Tensor, steps: int) -> Tensor:
        """Steps of length alpha up the summed loss, each followed by the projection to the ball."""
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
    Note: starts, norms and projections are per sample.
    Try it: when the unseen domain differs by noise or blur; a step costs eleven passes.
    """

    passes = 11.0
    steps = 10

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        delta = self.ascend(x, y, self.fresh(*x.shape[:2]), self.steps)
        return self.risks(self.perturb(x, delta), y).mean()


class PersistentPerturbation(Adversarial):
    """Perturbations that live as long as the training: one ascent step per iteration."""

    passes = 2.0

    delta: Tensor

    def setup(self) -> None:
        super().setup()
        self.register_buffer("delta", self.fresh(*self.scope()))

    def scope(self) -> tuple[int, int]:
        raise NotImplementedError

    def perturbed_risks(self, x: Tensor, y: Tensor, delta: Tensor) -> Tensor:
        """Moves the perturbations one step up, in place, and gives the risks R_e under them."""
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
    `literal` one step per domain in turn, as Algorithm 1 reads. On NICO the paper sets `loss_cap=2`.
    Try it: when each domain has a look of its own (background, camera, scanner) that says nothing about the label.
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
