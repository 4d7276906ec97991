"""What independent straight-line versions of the algorithms share: float64, one loop per domain, Adam by hand.

`follow` compares with a loss of the network alone. `same_course` gives a reference a twin of the algorithm, only as a
holder of initial weights and buffers, which the reference moves by hand: the twin's modules are called, its methods
never. After every step all parts of both must agree.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm
from domainwise.nets.network import Network
from small_problems import advance, batches, make, weights

NetworkLoss = Callable[[Network, Tensor, Tensor, int], Tensor]
Loss = Callable[[Algorithm, Tensor, Tensor, int], Tensor]
Step = Callable[[Tensor, Tensor, int], Tensor]
Reference = Callable[[Algorithm], Step]
SIZES = (5, 9, 3)


class Adam:
    """Adam, from Kingma & Ba 2015, Algorithm 1; weight decay as DomainBed has it: a term of the gradient."""

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, decay: float = 0.0, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.parameters, self.lr, self.decay, self.betas = list(parameters), lr, decay, betas
        self.restart()

    def restart(self) -> None:
        self.t = 0
        self.m = [torch.zeros_like(p) for p in self.parameters]
        self.v = [torch.zeros_like(p) for p in self.parameters]

    def step(self, loss: Tensor) -> None:
        self.apply(torch.autograd.grad(loss, self.parameters))

    def apply(self, gradients: Iterable[Tensor]) -> None:
        self.t += 1
        a, b = self.betas
        with torch.no_grad():
            for p, gradient, m, v in zip(self.parameters, gradients, self.m, self.v, strict=True):
                g = gradient + self.decay * p
                m.copy_(a * m + (1 - a) * g)
                v.copy_(b * v + (1 - b) * g * g)
                p -= self.lr * (m / (1 - a**self.t)) / ((v / (1 - b**self.t)).sqrt() + 1e-8)


def adam(twin: Algorithm, parameters: Iterable[Tensor]) -> Adam:
    return Adam(parameters, twin.hparams["lr"], twin.hparams["weight_decay"])


def agree(pair: tuple[Tensor, Tensor], tolerance: float = 1e-10) -> None:
    assert (pair[0] - pair[1]).abs().max() < tolerance


def erm(net: Network, x: Tensor, y: Tensor, step: int = 0) -> Tensor:
    return sum(F.cross_entropy(net(x[e]), y[e]) for e in range(len(x))) / len(x)


def follow(
    name: str, loss: NetworkLoss, restart_at: int | None = None, steps: int = 3, **hparams: object
) -> tuple[Tensor, Tensor]:
    """Weights after a few steps of the algorithm, and of the reference."""
    algorithm = make(name, **hparams)
    net = copy.deepcopy(algorithm.network)
    optimiser = Adam(net.parameters(), algorithm.hparams["lr"])
    data = batches(steps)
    for number, (x, y) in enumerate(data):
        if number == restart_at:
            optimiser.restart()
        optimiser.step(loss(net, x, y, number))
    advance(algorithm, data)
    return weights(algorithm), torch.cat([p.detach().flatten() for p in net.parameters()])


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


def noise() -> torch.Generator:
    """The stream that `make` gives an algorithm."""
    return torch.Generator().manual_seed(2)


def shuffled(n: int, stream: torch.Generator) -> list[int]:
    return torch.rand(n, generator=stream, dtype=torch.float64).argsort().tolist()


def descending(loss: Loss, restart_at: int | None = None) -> Reference:
    """The reference of a method that descends one loss with one Adam over all its parameters."""

    def reference(twin: Algorithm) -> Step:
        optimiser = adam(twin, twin.parameters())

        def step(x: Tensor, y: Tensor, number: int) -> Tensor:
            if number == restart_at:
                optimiser.restart()
            value = loss(twin, x, y, number)
            optimiser.step(value)
            return value

        return step

    return reference


def compare(
    algorithm: Algorithm, twin: Algorithm, losses: tuple[Tensor, Tensor], number: int, tolerance: float = 1e-10
) -> None:
    agree((losses[0], losses[1].detach()), tolerance)
    ours, expected = algorithm.state_dict(), twin.state_dict()
    assert ours.keys() == expected.keys()
    for part, value in ours.items():
        gap = float((value - expected[part]).abs().max())
        assert gap < tolerance, f"{part} is {gap:.1e} off after step {number}"


def same_course(name: str, reference: Reference, steps: int = 4, tolerance: float = 1e-10, **hparams: object) -> None:
    """Loss, parameters and buffers of all parts agree after every step."""
    settings = {"lr": 0.01, **hparams}
    algorithm, twin = make(name, **settings), make(name, **settings)
    step = reference(twin)
    for number, (x, y) in enumerate(batches(steps)):
        (loss,) = advance(algorithm, [(x, y)], first=number)
        compare(algorithm, twin, (loss, step(x, y, number)), number, tolerance)


def risk(net: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """One domain's mean of -log p(y | x), sample by sample."""
    logits = net(x)
    return sum(logits[i].exp().sum().log() - logits[i, y[i]] for i in range(len(x))) / len(x)


def risks(twin: Algorithm, x: Tensor, y: Tensor) -> list[Tensor]:
    return [risk(twin.network, x[e], y[e]) for e in range(len(x))]


def small_sets(algorithm: Algorithm, sizes: tuple[int, ...] = SIZES) -> Algorithm:
    """The same algorithm on training sets so small that remembered images are drawn often."""
    problem = dataclasses.replace(algorithm.problem, sizes=sizes)
    return type(algorithm)(algorithm.network, problem, algorithm.hparams, noise())
