"""Methods with classifiers beside the network's own, in float64; see tests/support/references.py."""

import copy

import pytest
import torch
from torch import Tensor, nn

from domainwise.algorithms.base import Algorithm
from references import descending, risk, same_course
from small_problems import make


def distance(a: nn.Module, b: nn.Module) -> float:
    with torch.no_grad():
        return sum(float(((s - t) ** 2).sum()) for s, t in zip(a.parameters(), b.parameters(), strict=True)) ** 0.5


@pytest.mark.parametrize(("delta", "projected"), [(0.3, True), (5.0, False)])
def test_transfer(delta: float, projected: bool) -> None:
    lengths = []

    def gap(head: nn.Module, z: list[Tensor], y: Tensor) -> Tensor:
        values = [risk(head, z[e], y[e]) for e in range(3)]
        ranked = sorted(values, key=lambda value: float(value.detach()))
        return ranked[-1] - ranked[0]

    def transfer(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        own = twin.network.classifier
        z = [twin.network.features(x[e]) for e in range(3)]
        head = copy.deepcopy(own)
        for _ in range(3):
            slopes = torch.autograd.grad(gap(head, [one.detach() for one in z], y), list(head.parameters()))
            with torch.no_grad():
                for weights, slope in zip(head.parameters(), slopes, strict=True):
                    weights += 0.4 * slope
                length = distance(head, own)
                for weights, centre in zip(head.parameters(), own.parameters(), strict=True):
                    weights.copy_(centre + (weights - centre) * min(1.0, delta / length))
            lengths.append(distance(head, own))
        return sum(risk(own, z[e], y[e]) for e in range(3)) / 3 + 1.7 * gap(head.requires_grad_(False), z, y)

    settings = {"lambda": 1.7, "delta": delta, "d_steps": 3, "lr_d": 0.4, "weight_decay": 0.1}
    same_course("Transfer", descending(transfer), **settings)
    assert (max(lengths) == pytest.approx(delta)) == projected


def vector(head: nn.Linear) -> Tensor:
    return torch.cat([head.weight, head.bias[:, None]], 1)


@pytest.mark.parametrize("largest", [10.0, 0.72], ids=["ten terms", "ended early"])
def test_trm(largest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads as modules, gradients and Hessians by autograd, entry by entry."""
    monkeypatch.setattr(type(make("TRM")), "largest", largest)
    shares = [[0.0 if p == q else 0.5 for p in range(3)] for q in range(3)]
    heads: list[nn.Linear] = []
    ended = []

    def trm(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        own = twin.network.classifier
        if not heads:
            heads.extend(copy.deepcopy(own) for _ in range(3))
        z = [twin.network.features(x[e]) for e in range(3)]
        total = sum(risk(own, z[e], y[e]) for e in range(3)) / 3
        if number < 2:
            return total
        for q, head in enumerate(heads):
            for _ in range(30):
                slopes = torch.autograd.grad(risk(head, z[q].detach(), y[q]), [head.weight, head.bias])
                with torch.no_grad():
                    head.weight -= 0.1 * slopes[0]
                    head.bias -= 0.1 * slopes[1]
            flat = vector(head).detach().flatten().requires_grad_()

            def at(domain: int, features: Tensor, flat: Tensor = flat) -> Tensor:
                weights = flat.view(3, 6)
                return risk(lambda inputs: inputs @ weights[:, :5].T + weights[:, 5], features, y[domain])

            others = [at(p, z[p]) for p in range(3)]
            transferred = sum(shares[q][p] * others[p] for p in range(3))
            v = torch.autograd.grad(transferred, flat, retain_graph=True)[0]
            (slope,) = torch.autograd.grad(at(q, z[q].detach()), flat, create_graph=True)
            hessian = torch.stack([torch.autograd.grad(one, flat, retain_graph=True)[0] for one in slope])
            answer, term, terms = v, v, 0
            while terms < 10:
                term = term - hessian @ term
                answer, terms = answer + term, terms + 1
                if answer.abs().max() > largest:
                    break
            ended.append(terms)
            (slope,) = torch.autograd.grad(at(q, z[q]), flat, create_graph=True)
            constant = [other.detach() for other in others]
            total = total + (transferred - 0.7 * (answer.detach() @ slope)) / 3
            grown = [shares[q][p] * torch.exp(0.5 * constant[p]) for p in range(3)]
            shares[q] = [float(one / sum(grown)) for one in grown]
        twin.heads.copy_(torch.stack([vector(head).detach() for head in heads]))
        twin.shares.copy_(torch.tensor(shares, dtype=torch.float64))
        return total

    settings = {"cos_lambda": 0.7, "anneal": 2, "eta": 0.5, "weight_decay": 0.1}
    same_course("TRM", descending(trm), steps=4, **settings)
    assert ended == ([10] * 6 if largest > 1 else [3, 10, 5, 2, 10, 10]), "each series ends by itself"
