"""Each algorithm against an independent straight-line version in float64, written here from its equations.

The references share nothing with the code under test but the initial weights and starts: one loop per domain, gradients
of scalars by autograd where the method defines them so, Adam by hand (tests/support/references.py).
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.nets.network import Network
from references import agree, climb, erm, follow, gradient_at, project
from small_problems import advance, batches, make


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
