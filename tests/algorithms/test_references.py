"""Each algorithm against an independent straight-line version in float64, written here from its equations.

The references share nothing with the code under test but the initial weights and starts: one loop per domain, gradients
of scalars by autograd where the method defines them so, Adam by hand.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.nets.network import Network
from helpers import advance, batches, make, weights

Loss = Callable[[Network, Tensor, Tensor, int], Tensor]


class Adam:
    """Adam, from Kingma & Ba 2015, Algorithm 1."""

    def __init__(self, parameters: list[Tensor], lr: float) -> None:
        self.parameters, self.lr = parameters, lr
        self.restart()

    def restart(self) -> None:
        self.t = 0
        self.m = [torch.zeros_like(p) for p in self.parameters]
        self.v = [torch.zeros_like(p) for p in self.parameters]

    def step(self, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, self.parameters)
        self.t += 1
        with torch.no_grad():
            for p, g, m, v in zip(self.parameters, gradients, self.m, self.v, strict=True):
                m.copy_(0.9 * m + 0.1 * g)
                v.copy_(0.999 * v + 0.001 * g * g)
                p -= self.lr * (m / (1 - 0.9**self.t)) / ((v / (1 - 0.999**self.t)).sqrt() + 1e-8)


def follow(
    name: str, loss: Loss, restart_at: int | None = None, steps: int = 3, **hparams: object
) -> tuple[Tensor, Tensor]:
    """Weights after a few steps of the algorithm, and of the reference."""
    algorithm = make(name, **hparams)
    net = copy.deepcopy(algorithm.network)
    optimiser = Adam(list(net.parameters()), algorithm.hparams["lr"])
    data = batches(steps)
    for number, (x, y) in enumerate(data):
        if number == restart_at:
            optimiser.restart()
        optimiser.step(loss(net, x, y, number))
    advance(algorithm, data)
    return weights(algorithm), torch.cat([p.detach().flatten() for p in net.parameters()])


def agree(pair: tuple[Tensor, Tensor], tolerance: float = 1e-10) -> None:
    assert (pair[0] - pair[1]).abs().max() < tolerance


def erm(net: Network, x: Tensor, y: Tensor, step: int = 0) -> Tensor:
    return sum(F.cross_entropy(net(x[e]), y[e]) for e in range(len(x))) / len(x)


def test_erm() -> None:
    agree(follow("ERM", erm))


def test_irm() -> None:
    def irm(net: Network, x: Tensor, y: Tensor, step: int) -> Tensor:
        weight, total = (7.0 if step >= 2 else 1.0), torch.zeros((), dtype=x.dtype)
        for e in range(len(x)):
            w = torch.ones((), dtype=x.dtype, requires_grad=True)
            logits = net(x[e])
            even, odd = (
                torch.autograd.grad(F.cross_entropy(w * logits[i::2], y[e][i::2]), w, create_graph=True)[0]
                for i in (0, 1)
            )
            total = total + F.cross_entropy(logits, y[e]) + weight * even * odd
        return total / len(x)

    agree(follow("IRM", irm, restart_at=2, steps=5, penalty=7.0, anneal=2))


def project(delta: Tensor, eps: float, norm: str) -> Tensor:
    if norm == "linf":
        return delta.clamp(-eps, eps)
    length = delta.pow(2).sum().sqrt()
    return delta if length <= eps else delta * eps / length


def climb(delta: Tensor, gradient: Tensor, eps: float, alpha: float, norm: str) -> Tensor:
    length = gradient.pow(2).sum().sqrt()
    if length == 0:
        return delta
    return project(delta + alpha * (gradient.sign() if norm == "linf" else gradient / length), eps, norm)


def gradient_at(net: Network, x: Tensor, y: Tensor, delta: Tensor, cap: float | None = None) -> Tensor:
    delta = delta.clone().requires_grad_()
    losses = F.cross_entropy(net((x + delta).clamp(0, 1)), y, reduction="none")
    if cap is not None:
        losses = losses.clamp(0, cap)
    return torch.autograd.grad(losses.sum(), delta)[0]


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("cap", [None, 1.1])
def test_dat(norm: str, cap: float | None) -> None:
    settings = {"eps": 0.7, "alpha": 0.4, "norm": norm, "loss_cap": cap}
    deltas = [d[0] for d in make("DAT", **settings).delta.clone()]

    def dat(net: Network, x: Tensor, y: Tensor, step: int) -> Tensor:
        total = torch.zeros((), dtype=x.dtype)
        for e in range(len(x)):
            deltas[e] = climb(deltas[e], gradient_at(net, x[e], y[e], deltas[e], cap), 0.7, 0.4, norm)
            total = total + F.cross_entropy(net((x[e] + deltas[e]).clamp(0, 1)), y[e])
        return total / len(x)

    agree(follow("DAT", dat, steps=5, **settings))
    algorithm = make("DAT", **settings)
    advance(algorithm, batches(5))
    agree((algorithm.delta[:, 0], torch.stack(deltas)))


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_uat(norm: str) -> None:
    settings = {"eps": 0.7, "alpha": 0.4, "norm": norm}
    delta = make("UAT", **settings).delta.clone()[0, 0]

    def uat(net: Network, x: Tensor, y: Tensor, step: int) -> Tensor:
        nonlocal delta
        gradient = sum(gradient_at(net, x[e], y[e], delta) for e in range(len(x)))
        delta = climb(delta, gradient, 0.7, 0.4, norm)
        return erm(net, (x + delta).clamp(0, 1), y)

    agree(follow("UAT", uat, steps=5, **settings))


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_at(norm: str) -> None:
    settings = {"eps": 0.7, "alpha": 0.2, "norm": norm, "start": "zero"}

    def at(net: Network, x: Tensor, y: Tensor, step: int) -> Tensor:
        adversarial = torch.empty_like(x)
        for e in range(len(x)):
            for i in range(len(x[e])):
                delta = torch.zeros_like(x[e, i])
                for _ in range(10):
                    gradient = gradient_at(net, x[e, i : i + 1], y[e, i : i + 1], delta)
                    delta = climb(delta, gradient, 0.7, 0.2, norm)
                adversarial[e, i] = (x[e, i] + delta).clamp(0, 1)
        return erm(net, adversarial, y)

    agree(follow("AT", at, **settings))


def test_random_start_is_uniform_in_the_cube_then_projected() -> None:
    at = make("AT", eps=0.7)
    u = torch.rand(3, 4, 2, 6, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cube = (2 * u - 1) * 0.7
    expected = torch.stack([torch.stack([project(d, 0.7, "l2") for d in row]) for row in cube])
    agree((at.initial_delta(3, 4), expected))
