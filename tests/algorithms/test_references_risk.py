"""Methods of the domains' risks, beyond those of the first references, in float64; see tests/support/references.py."""

import math
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from domainwise.algorithms.base import Algorithm
from domainwise.algorithms.risk import kernel_quantile
from references import Step, adam, descending, risk, risks, same_course
from small_problems import advance, batches, make


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_sd(decay: float) -> None:
    def sd(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        total = 0.0
        for e in range(len(x)):
            logits = twin.network(x[e])
            squares = sum(one @ one for one in logits) / logits.numel()
            total = total + (risk(lambda z: z, logits, y[e]) + 0.6 * squares) / len(x)
        return total

    same_course("SD", descending(sd), penalty=0.6, weight_decay=decay)


def late(loss: object, anneal: int, lr: float) -> object:
    """ERM, then another loss with a new Adam of another learning rate."""

    def reference(twin: Algorithm) -> Step:
        optimiser = adam(twin, twin.parameters())

        def step(x: Tensor, y: Tensor, number: int) -> Tensor:
            if number == anneal:
                optimiser.restart()
                optimiser.lr = lr
            value = loss(twin, x, y) if number >= anneal else sum(risks(twin, x, y)) / len(x)
            optimiser.step(value)
            return value

        return step

    return reference


def quantile(values: list[float], alpha: float) -> float:
    """By bisection from far away, as long as the halves differ."""
    mean = sum(values) / len(values)
    width = 1.06 * math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) / len(values) ** 0.2
    low, high = min(values) - 100 * width, max(values) + 100 * width
    for _ in range(200):
        middle = (low + high) / 2
        if sum(NormalDist(v, width).cdf(middle) for v in values) / len(values) < alpha:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@pytest.mark.parametrize("alpha", [0.6, 0.95])
def test_eqrm(alpha: float) -> None:
    """The quantile's derivatives by each risk are those of differences; the chain rule does the rest."""

    def eqrm(twin: Algorithm, x: Tensor, y: Tensor) -> Tensor:
        values = risks(twin, x, y)
        numbers = [float(value.detach()) for value in values]
        total = torch.full((), quantile(numbers, alpha), dtype=torch.float64)
        for e, value in enumerate(values):
            ends = []
            for move in (1e-4, -1e-4):
                ends.append(quantile([n + move * (e == k) for k, n in enumerate(numbers)], alpha))
            total = total + (ends[0] - ends[1]) / 2e-4 * (value - value.detach())
        return total

    settings = {"quantile": alpha, "anneal": 2, "anneal_lr": 0.004, "weight_decay": 0.1}
    same_course("EQRM", late(eqrm, 2, 0.004), steps=5, tolerance=1e-7, **settings)


@pytest.mark.parametrize("alpha", [0.01, 0.5, 0.75, 0.99])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_quantile_has_the_derivatives_of_differences(alpha: float, dtype: torch.dtype) -> None:
    numbers = [0.3, 1.7, 0.9, 0.4, 0.35]
    values = torch.tensor(numbers, dtype=dtype, requires_grad=True)
    found = kernel_quantile(values, alpha)
    (gradient,) = torch.autograd.grad(found, values)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    assert float(found.detach()) == pytest.approx(quantile(numbers, alpha), abs=tolerance)
    for e in range(len(numbers)):
        up, down = (quantile([n + move * (e == k) for k, n in enumerate(numbers)], alpha) for move in (1e-5, -1e-5))
        assert float(gradient[e]) == pytest.approx((up - down) / 2e-5, abs=max(tolerance, 1e-8) * 10)


def test_a_quantile_of_equal_values_is_that_value_and_has_a_derivative() -> None:
    values = torch.full((4,), 0.7, requires_grad=True)
    (gradient,) = torch.autograd.grad(kernel_quantile(values, 0.9), values)
    assert torch.allclose(gradient, torch.full((4,), 0.25)) and abs(kernel_quantile(values, 0.9) - 0.7) < 1e-6


def test_rdm() -> None:
    def rdm(twin: Algorithm, x: Tensor, y: Tensor) -> Tensor:
        losses = [[risk(twin.network, x[e, i : i + 1], y[e, i : i + 1]) for i in range(4)] for e in range(3)]
        means = [sum(of_domain) / 4 for of_domain in losses]
        worst = losses[max(range(3), key=lambda e: float(means[e].detach()))]
        every = [one for of_domain in losses for one in of_domain]

        def kernel(left: list[Tensor], right: list[Tensor]) -> Tensor:
            pairs = [(a - b) ** 2 for a in left for b in right]
            return sum(torch.exp(-(10.0**k) * square) for k in range(-4, 4) for square in pairs) / len(pairs)

        def variance(values: list[Tensor]) -> Tensor:
            mean = sum(values) / len(values)
            return sum((value - mean) ** 2 for value in values) / (len(values) - 1)

        discrepancy = kernel(worst, worst) + kernel(every, every) - 2 * kernel(worst, every)
        return sum(means) / 3 + 6.0 * discrepancy + 0.5 * (variance(worst) + variance(every))

    settings = {"penalty": 6.0, "variance": 0.5, "anneal": 2, "anneal_lr": 0.004, "weight_decay": 0.1}
    same_course("RDM", late(rdm, 2, 0.004), steps=5, **settings)


@pytest.mark.parametrize("name", ["EQRM", "RDM"])
def test_a_learning_rate_that_changed_is_restored(name: str) -> None:
    data, settings = batches(6), {"anneal": 2, "anneal_lr": 0.1, "lr": 1e-3}
    whole, first, second = (make(name, **settings) for _ in range(3))
    advance(whole, data)
    advance(first, data[:4])
    second.load_state(first.state())
    advance(second, data[4:], first=4)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))
