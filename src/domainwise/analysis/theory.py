"""The paper's statements, checked numerically in float64 on random networks and data.

A piecewise linear network is Phi(x) = Phi_x x + B_x with Phi_x its Jacobian at x; its logit is beta^T Phi(x), its loss
-log sigma(y beta^T Phi(x)) with y = +-1 (as two logits: 0 and beta^T Phi(x)).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.adversarial import BALLS
from domainwise.engine.penalties import penalty_at, penalty_dat, penalty_irm, penalty_ldat

IDENTITY = 1e-9
"""Largest relative error of an identity."""
ORDER = (1.9, 2.1)
"""Where the measured order of an O(eps^2) gap must lie."""
RADII = tuple(2.0**-k for k in range(2, 13))


@dataclass(frozen=True)
class Verdict:
    """One statement of the paper and what was measured of it."""

    statement: str
    measured: float
    target: str
    holds: bool
    note: str = ""


@dataclass(frozen=True)
class LinearisationGap:
    """How far a linearisation is from the true inner maximum, per radius."""

    name: str
    radii: tuple[float, ...]
    gaps: tuple[float, ...]
    order: float


class Binary(nn.Module):
    """beta^T Phi(x) as the logits of two classes, 0 (y = -1) and 1 (y = +1)."""

    def __init__(self, features: nn.Module, size: int) -> None:
        super().__init__()
        self.features = features
        self.beta = nn.Parameter(torch.randn(size, dtype=torch.float64) / math.sqrt(size))

    def forward(self, x: Tensor) -> Tensor:
        logit = self.features(x) @ self.beta
        return torch.stack([torch.zeros_like(logit), logit], 1)


INPUTS, WIDTH = 20, 32


def network(activation: type[nn.Module], bias: bool) -> Binary:
    layers = [
        nn.Linear(INPUTS, WIDTH, bias=bias),
        activation(),
        nn.Linear(WIDTH, WIDTH, bias=bias),
        activation(),
        nn.Linear(WIDTH, 8, bias=bias),
    ]
    return Binary(nn.Sequential(*layers).double(), 8)


def domains(count: int, samples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Samples [n, inputs] and classes [n] of domains with different means and label proportions."""
    for _ in range(count):
        x = torch.randn(samples, INPUTS, dtype=torch.float64) + torch.randn(INPUTS, dtype=torch.float64)
        yield x, (torch.rand(samples) < torch.rand(())).long()


@dataclass(frozen=True)
class Pieces:
    """L_x [n, inputs] and B~_x [n] of Proposition 1, by automatic differentiation."""

    slopes: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, net: Binary, x: Tensor, y: Tensor, *, sigma_with_bias: bool = True) -> "Pieces":
        jacobian = torch.func.vmap(torch.func.jacrev(net.features))(x)  # Phi_x [n, d, inputs]
        linear = torch.einsum("ndi,ni->nd", jacobian, x)  # Phi_x x
        offset = net.features(x) - linear  # B_x
        sign = (2 * y - 1).double()
        logit = (linear + offset if sigma_with_bias else linear) @ net.beta
        weight = (1 - torch.sigmoid(sign * logit)) * sign
        slopes = weight[:, None] * torch.einsum("d,ndi->ni", net.beta, jacobian)
        return cls(slopes.detach(), (weight * (offset @ net.beta)).detach())


def worst(values: Iterator[tuple[Tensor, Tensor]]) -> float:
    """The largest relative error of (value, expected) pairs."""
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-300)) for a, b in values)


def proposition(bias: bool) -> Iterator[Verdict]:
    """Proposition 1: Penalty_IRM = |E [L_x x + B~_x]|^2 and Penalty_DAT = |E L_x|."""
    net = network(nn.ReLU, bias)
    data = list(domains(3, 64))

    def irm_pairs(*, sigma_with_bias: bool) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in data:
            pieces = Pieces.of(net, x, y, sigma_with_bias=sigma_with_bias)
            predicted = ((pieces.slopes * x).sum(1) + pieces.offsets).mean().square()
            yield predicted, penalty_irm(net, x, y).detach()

    def dat_pairs(*, sigma_with_bias: bool) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in data:
            pieces = Pieces.of(net, x, y, sigma_with_bias=sigma_with_bias)
            yield pieces.slopes.mean(0).norm(), penalty_dat(net, x, y)

    kind = "with biases, sigma at the full logit, B_x = Phi(x) - Phi_x x" if bias else "without biases, as printed"
    target = f"relative error < {IDENTITY:g}"
    for name, pairs in (("Penalty_IRM = |E[L_x x + B~_x]|^2", irm_pairs), ("Penalty_DAT = |E L_x|", dat_pairs)):
        error, literal = worst(pairs(sigma_with_bias=True)), worst(pairs(sigma_with_bias=False))
        note = f"with sigma as printed, the bias left out of it, the relative error would be {literal:.1g}"
        yield Verdict(f"Proposition 1, {kind}: {name}", error, target, error < IDENTITY, note if bias else "")


def remark(bias: bool, eps: float = 0.1) -> Verdict:
    """The Remark, for environments of a single sample: Penalty_LDAT^2 = eps^2 Penalty'_IRM (without the bias term)."""
    net = network(nn.ReLU, bias)
    x, y = next(domains(1, 64))
    single = [(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    ldat = torch.stack([eps * penalty_ldat(net, *sample) for sample in single]).square()
    irm = torch.stack([penalty_irm(net, *sample) for sample in single]).detach()
    without_bias = (Pieces.of(net, x, y).slopes * x).sum(1).square()  # Penalty'_IRM
    error = worst(iter([(ldat, eps**2 * without_bias)]))
    added = float(((irm - without_bias).abs() / irm).median())
    note = f"the bias term changes Penalty_IRM by {100 * added:.0f} % in the median sample" if bias else ""
    kind = "with biases, Penalty'_IRM leaves them out" if bias else "without biases"
    statement = f"Remark, {kind}: Penalty_LDAT^2 = eps^2 Penalty'_IRM"
    if not bias:
        error = max(error, worst(iter([(ldat, eps**2 * irm)])))
    return Verdict(statement, error, f"relative error < {IDENTITY:g}", error < IDENTITY, note)


def inner_maximum(net: nn.Module, x: Tensor, y: Tensor, eps: float, ball: str, *, shared: bool) -> Tensor:
    """max over |delta| <= eps of the mean loss, one per sample or one shared: fixed point of delta = eps g/|g|."""
    geometry = BALLS[ball]
    delta = torch.zeros_like(x[:1] if shared else x)[None]  # [1, 1 or n, inputs]
    for _ in range(60):
        delta = delta.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(net(x + delta[0]), y, reduction="sum"), delta)
        delta = geometry.project(eps * geometry.direction(gradient), eps)
    return F.cross_entropy(net(x + delta[0].detach()), y).detach()


def linearisation(name: str, ball: str) -> LinearisationGap:
    """The gap between the true inner maximum and risk + eps * penalty, which must fall as O(eps^2)."""
    net = network(nn.Softplus, bias=True)
    x, y = next(domains(1, 64))
    penalty: Callable[..., Tensor] = {"AT": penalty_at, "DAT": penalty_dat}[name]
    risk, slope = F.cross_entropy(net(x), y).detach(), penalty(net, x, y, ball)
    gaps = tuple(
        float((inner_maximum(net, x, y, eps, ball, shared=name == "DAT") - (risk + eps * slope)).abs()) for eps in RADII
    )
    return LinearisationGap(f"{name}, {ball}", RADII, gaps, measured_order(RADII, gaps))


def measured_order(radii: tuple[float, ...], gaps: tuple[float, ...]) -> float:
    """The slope of log gap against log eps over the smaller half of the radii."""
    half = len(radii) // 2
    log_eps = torch.tensor(radii[half:], dtype=torch.float64).log()
    log_gap = torch.tensor(gaps[half:], dtype=torch.float64).clamp_min(1e-300).log()
    centred = log_eps - log_eps.mean()
    return float((centred * log_gap).sum() / centred.square().sum())


def check(seed: int = 0) -> tuple[list[Verdict], list[LinearisationGap]]:
    """Every statement, on networks and data drawn from this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        verdicts = [*proposition(bias=False), *proposition(bias=True), remark(bias=False), remark(bias=True)]
        gaps = [linearisation(name, ball) for name in ("AT", "DAT") for ball in ("l2", "linf")]
    for gap in gaps:
        holds = ORDER[0] < gap.order < ORDER[1]
        statement = f"Linearisation of {gap.name}: max = risk + eps penalty + O(eps^2)"
        verdicts.append(Verdict(statement, gap.order, f"order between {ORDER[0]:g} and {ORDER[1]:g}", holds))
    return verdicts, gaps
