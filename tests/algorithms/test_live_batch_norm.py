"""A BatchNorm that learns sees what it sees in DomainBed: one domain at a time, or all at once; in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Algorithm
from domainwise.nets.network import Network
from references import adam, agree, compare, noise, risk, shuffled
from small_problems import CLASSES, advance, batches, make

PER_DOMAIN = {"GroupDRO", "EQRM", "CORAL", "MMD", "MTL", "Mixup", "CausIRL_CORAL", "CausIRL_MMD"}


def live(frozen: bool = False) -> Network:
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 5)
    )
    network = Network(body, CLASSES, feature_size=5).double()
    if frozen:
        body[1].train = lambda _=True: body[1]  # stays in eval mode
        body[1].training = False
    return network


Loss = Callable[[Algorithm, Tensor, Tensor], Tensor]


def group_dro(twin: Algorithm, x: Tensor, y: Tensor) -> Tensor:
    values = [risk(twin.network, x[e], y[e]) for e in range(3)]
    q = torch.stack([twin.q[e] * (0.1 * values[e].detach()).exp() for e in range(3)])
    twin.q.copy_(q / q.sum())
    return sum(twin.q[e].clone() * values[e] for e in range(3))


def coral(twin: Algorithm, x: Tensor, y: Tensor) -> Tensor:
    z = [twin.network.features(x[e]) for e in range(3)]
    gaps = []
    for i, j in ((0, 1), (0, 2), (1, 2)):
        gaps.append((z[i].mean(0) - z[j].mean(0)).square().mean() + (z[i].T.cov() - z[j].T.cov()).square().mean())
    return sum(risk(twin.network.classifier, z[e], y[e]) for e in range(3)) / 3 + 2.0 * sum(gaps) / 3


def mtl(twin: Algorithm, x: Tensor, y: Tensor) -> Tensor:
    total = 0.0
    for e in range(3):
        z = twin.network.features(x[e])
        v = 0.9 * z.mean(0) + (1 - 0.9) * twin.embeddings[e]
        twin.embeddings[e] = v.detach()
        total = total + risk(twin.network.classifier, torch.cat([z, v.expand_as(z)], 1), y[e])
    return total


def eqrm(twin: Algorithm, x: Tensor, y: Tensor) -> Tensor:
    return sum(risk(twin.network, x[e], y[e]) for e in range(3)) / 3  # before the anneal step


def vrex(twin: Algorithm, x: Tensor, y: Tensor) -> Tensor:
    logits = twin.network(torch.cat(list(x)))
    parts = [risk(lambda part: part, logits[4 * e : 4 * e + 4], y[e]) for e in range(3)]
    mean = sum(parts) / 3
    return mean + sum((part - mean) ** 2 for part in parts) / 3


def transfer(twin: Algorithm, x: Tensor, y: Tensor) -> Tensor:
    """With h' = h (delta 0)."""
    joint = risk(twin.network, torch.cat(list(x)), y.flatten())
    weight, bias = twin.network.classifier.weight.detach(), twin.network.classifier.bias.detach()
    parts = [risk(lambda z: z @ weight.T + bias, twin.network.features(x[e]), y[e]) for e in range(3)]
    ranked = sorted(parts, key=lambda part: float(part.detach()))
    return joint + 1.5 * (ranked[-1] - ranked[0])


REFERENCES: dict[str, tuple[Loss, dict[str, float]]] = {
    "GroupDRO": (group_dro, {"eta": 0.1}),
    "CORAL": (coral, {"gamma": 2.0}),
    "MTL": (mtl, {"ema": 0.9}),
    "EQRM": (eqrm, {}),
    "VREx": (vrex, {}),
    "Transfer": (transfer, {"lambda": 1.5, "delta": 0.0, "d_steps": 1}),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_as_in_domainbed(name: str) -> None:
    """Losses, weights and the running statistics after every step."""
    loss, hparams = REFERENCES[name]
    ours, twin = (make(name, net=live(), lr=0.01, weight_decay=0.1, **hparams) for _ in range(2))
    optimiser = adam(twin, twin.parameters())
    for number, (x, y) in enumerate(batches(4)):
        (value,) = advance(ours, [(x, y)], first=number)
        expected = loss(twin, x, y)
        optimiser.step(expected)
        compare(ours, twin, (value, expected), number)


def test_mixup_passes_pair_by_pair() -> None:
    ours, twin, stream = make("Mixup", net=live(), lr=0.01), make("Mixup", net=live(), lr=0.01), noise()
    optimiser = adam(twin, twin.parameters())
    for number, (x, y) in enumerate(batches(3)):
        ring = shuffled(3, stream)
        gammas = torch._standard_gamma(torch.full((2, 3), 0.2, dtype=torch.float64), generator=stream)
        expected = 0.0
        for i in range(3):
            share, (a, b) = gammas[0, i] / gammas[:, i].sum(), (ring[i], ring[(i + 1) % 3])
            logits = twin.network(share * x[a] + (1 - share) * x[b])
            near, far = (risk(lambda part: part, logits, y[e]) for e in (a, b))
            expected = expected + (share * near + (1 - share) * far) / 3
        optimiser.step(expected)
        (value,) = advance(ours, [(x, y)], first=number)
        compare(ours, twin, (value, expected), number, tolerance=1e-9)


@pytest.mark.parametrize("name", sorted(PER_DOMAIN | {"ERM", "IRM", "VREx", "RDM", "DANN", "Fishr", "CAD"}))
def test_passes_of_a_step(name: str) -> None:
    """Three passes of one domain each where DomainBed makes them, else one of all; frozen BatchNorm: always one."""
    for frozen in (False, True):
        algorithm, sizes = make(name, net=live(frozen)), []
        algorithm.network.features.register_forward_hook(lambda _, given, __, sizes=sizes: sizes.append(len(given[0])))
        advance(algorithm, batches(1))
        assert sizes == ([4] * 3 if name in PER_DOMAIN and not frozen else [12])


def test_every_method_of_the_list_and_no_other() -> None:
    assert {name for name in ALGORITHMS if ALGORITHMS[name].domain_by_domain} == PER_DOMAIN


def test_running_statistics_count_each_domain() -> None:
    algorithm = make("GroupDRO", net=live())
    advance(algorithm, batches(2))
    assert int(algorithm.network.features[1].num_batches_tracked) == 6
    agree((algorithm.q.sum(), torch.ones((), dtype=torch.float64)))
