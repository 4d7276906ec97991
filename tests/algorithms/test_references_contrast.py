"""Methods that compare samples or parts of the batch, in float64; see tests/support/references.py."""

import math

import pytest
import torch
from torch import Tensor, nn

from domainwise.algorithms.base import Algorithm
from references import compare, descending, noise, risk, same_course
from small_problems import advance, batches, make


def batch_norm(norm: nn.BatchNorm1d, h: Tensor) -> Tensor:
    """Normalised by the batch's own statistics, which also move the running ones."""
    mean = sum(h) / len(h)
    var = sum((one - mean) ** 2 for one in h) / len(h)
    with torch.no_grad():
        norm.running_mean.copy_(0.9 * norm.running_mean + 0.1 * mean)
        norm.running_var.copy_(0.9 * norm.running_var + 0.1 * var * len(h) / (len(h) - 1))
        norm.num_batches_tracked += 1
    return (h - mean) / (var + 1e-5).sqrt() * norm.weight + norm.bias


def within_classes(labels: list[int], stream: torch.Generator) -> list[int]:
    """For each sample one of its class: the members of a class, in order, take those in a random order."""
    keys = torch.rand(len(labels), generator=stream, dtype=torch.float64).tolist()
    partner = [0] * len(labels)
    for label in set(labels):
        members = [i for i, one in enumerate(labels) if one == label]
        for member, taken in zip(members, sorted(members, key=lambda i: keys[i]), strict=True):
            partner[member] = taken
    return partner


@pytest.mark.parametrize("sure", [False, True])
def test_selfreg(sure: bool) -> None:
    """With risks above 1 and, where the network is sure of the one label there is, below."""
    stream, factors = noise(), []

    def selfreg(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        if number == 0:
            assert twin.projection[0].weight.shape == (10, 5) and len(twin.projection) == 8
        labels = y.flatten().tolist()
        z = torch.cat([twin.network.features(x[e]) for e in range(len(x))])
        f = twin.network.classifier(z)
        h = z
        for layer in range(3):
            h = batch_norm(twin.projection[3 * layer + 1], twin.projection[3 * layer](h))
            h = h if layer == 2 else h.clamp_min(0)
        share = math.sin(math.pi / 2 * float(torch.rand((), generator=stream, dtype=torch.float64))) ** 2
        near, far = within_classes(labels, stream), within_classes(labels, stream)
        terms = {"f": 0.0, "z": 0.0, "mixed f": 0.0, "mixed z": 0.0}
        for i in range(len(labels)):
            for kind, own, others in (("f", f[i], f), ("z", z[i], h)):
                mixed = share * others[near[i]] + (1 - share) * others[far[i]]
                terms[kind] += ((own - others[near[i]]) ** 2).sum() / (len(labels) * len(own))
                terms[f"mixed {kind}"] += ((own - mixed) ** 2).sum() / (len(labels) * len(own))
        value = risk(lambda logits: logits, f, y.flatten())
        factors.append(min(1.0, float(value.detach())))
        single, mixed = terms["f"] + 0.3 * terms["z"], terms["mixed f"] + 0.3 * terms["mixed z"]
        return value + factors[-1] * (share * single + (1 - share) * mixed)

    algorithm, twin = (make("SelfReg", lr=0.01, weight_decay=0.1) for _ in range(2))
    for one in (algorithm, twin):
        one.network.classifier.bias.data[0] += 2.0 * sure
    step = descending(selfreg)(twin)
    for number, (x, y) in enumerate(batches(4)):
        labels = torch.zeros_like(y) if sure else y
        (loss,) = advance(algorithm, [(x, labels)], first=number)
        compare(algorithm, twin, (loss, step(x, labels, number)), number)
    assert (factors[0] < 1) == sure


def test_frozen_features_need_no_projection() -> None:
    """Its terms change the projection alone: without them the classifier is the same, bit by bit."""
    without, whole = (make("SelfReg", weight_decay=0.1) for _ in range(2))
    without.network.freeze_features()
    without.projection = nn.Identity()
    group, features = whole.optimizers["network"].param_groups[0], set(whole.network.features.parameters())
    group["params"] = [parameter for parameter in group["params"] if parameter not in features]
    advance(without, batches(4)), advance(whole, batches(4))
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, without.network.state_dict()[name]), name


def test_partners_are_a_permutation_within_classes() -> None:
    algorithm, labels = make("SelfReg"), torch.tensor([2, 0, 1, 0, 2, 2, 0, 0, 2, 0])
    found = [algorithm.partners(labels) for _ in range(40)]
    assert all(torch.equal(labels[partner], labels) for partner in found)
    assert all(sorted(partner.tolist()) == list(range(10)) for partner in found)
    assert {int(partner[1]) for partner in found} == {1, 3, 6, 7, 9}


def test_shares_of_selfreg_are_beta_variates() -> None:
    """sin^2(pi u / 2) of a uniform u has the moments of Beta(1/2, 1/2): mean 1/2, variance 1/8."""
    u = torch.rand(4000, generator=noise(), dtype=torch.float64)
    shares = (math.pi / 2 * u).sin().square()
    assert shares.mean() == pytest.approx(0.5, abs=0.02) and shares.var() == pytest.approx(1 / 8, rel=0.05)


@pytest.mark.parametrize("temperature", [0.1, 0.7])
@pytest.mark.parametrize("name", ["CAD", "CondCAD"])
def test_cad(name: str, temperature: float) -> None:
    left_out = []

    def cad(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        z = [(twin.network.features(image[None])[0], e, int(y[e, i])) for e in range(3) for i, image in enumerate(x[e])]
        surprises = []
        for i, (mine, domain, label) in enumerate(z):
            compared = [other for j, other in enumerate(z) if j != i and (name == "CAD" or other[2] == label)]
            weights = [((mine @ other[0]) / temperature).exp() for other in compared]
            abroad = [w for w, other in zip(weights, compared, strict=True) if other[1] != domain]
            if abroad:
                surprises.append(-(sum(abroad) / sum(weights)).log())
        left_out.append(12 - len(surprises))
        value = sum(risk(twin.network, x[e], y[e]) for e in range(3)) / 3
        return value + 2.5 * temperature / 0.07 * sum(surprises) / len(surprises)

    settings = {"lambda": 2.5, "temperature": temperature, "weight_decay": 0.1}
    same_course(name, descending(cad), steps=6, **settings)
    assert (sum(left_out) > 0) == (name == "CondCAD"), "some samples are alone with their class"


def test_a_class_of_one_domain_has_no_bottleneck() -> None:
    """No sample has another of its class abroad: nothing to divide by, and no gradient."""
    algorithm, (x, _) = make("CondCAD", **{"lambda": 5.0}), batches(1)[0]
    y = torch.tensor([[0] * 4, [1] * 4, [2] * 4])
    z = algorithm.represent(x)
    value = algorithm.bottleneck(z, y)
    assert value == 0 and torch.autograd.grad(value, z)[0].abs().max() == 0


def coral(a: Tensor, b: Tensor) -> Tensor:
    total = 0.0
    means = [sum(part) / len(part) for part in (a, b)]
    covariances = [
        sum(torch.outer(one - mean, one - mean) for one in part) / (len(part) - 1)
        for part, mean in zip((a, b), means, strict=True)
    ]
    for left, right in (means, covariances):
        total = total + ((left - right) ** 2).sum() / left.numel()
    return total


def mmd(a: Tensor, b: Tensor) -> Tensor:
    def kernel(left: Tensor, right: Tensor) -> Tensor:
        pairs = [((s - t) ** 2).sum() for s in left for t in right]
        return sum(torch.exp(-(10.0**k) * square) for k in range(-3, 4) for square in pairs) / len(pairs)

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)


@pytest.mark.parametrize(("name", "distance"), [("CausIRL_CORAL", coral), ("CausIRL_MMD", mmd)])
def test_causirl(name: str, distance: object) -> None:
    stream, sizes = noise(), []

    def causirl(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        cuts = [int(4 * u) for u in torch.rand(3, 1, generator=stream, dtype=torch.float64).flatten().tolist()]
        z = [twin.network.features(x[e]) for e in range(3)]
        first = torch.cat([z[e][: cuts[e]] for e in range(3)])
        second = torch.cat([z[e][cuts[e] :] for e in range(3)])
        sizes.append(len(first))
        value = sum(risk(twin.network.classifier, z[e], y[e]) for e in range(3)) / 3
        return value + (3.0 * distance(first, second) if len(first) > 1 and len(second) > 1 else 0.0)

    same_course(name, descending(causirl), gamma=3.0, weight_decay=0.1)
    assert len(set(sizes)) > 1


@pytest.mark.parametrize(("features", "unused"), [(40, "gap_by_features"), (5, "gap_by_samples")])
def test_causirl_of_more_features_than_samples_and_of_fewer(
    features: int, unused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where features outnumber samples, no matrix of features by features is made; values and gradients are equal."""
    algorithm = make("CausIRL_CORAL")
    monkeypatch.delattr(type(algorithm), unused)
    z = torch.randn(12, features, dtype=torch.float64, generator=noise()).requires_grad_()
    first = torch.arange(12) % 3 == 0
    parts = torch.stack([first, ~first]).to(z.dtype)
    found = algorithm.distance(z, parts, parts.sum(1, keepdim=True))
    expected = coral(z[first], z[~first])
    assert torch.allclose(found, expected, rtol=1e-13, atol=0)
    gradients = [torch.autograd.grad(value, z)[0] for value in (found, expected)]
    assert torch.allclose(*gradients, rtol=1e-10, atol=1e-14)
    single = algorithm.distance(z.float(), parts.float(), parts.float().sum(1, keepdim=True))
    assert torch.allclose(single.double(), expected, rtol=1e-6, atol=0), "in float32, too"


@pytest.mark.parametrize("name", ["CausIRL_CORAL", "CausIRL_MMD"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_parts_with_too_few_samples_have_no_distance(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, (x, y) = make(name), batches(1)[0]
    draws = torch.tensor([[0.3 * count], [0.0], [0.0]], dtype=torch.float64)  # int(4 * 0.3) = 1, int(4 * 0.6) = 2
    monkeypatch.setattr(algorithm, "random", lambda *_, **__: draws)
    loss = algorithm.loss(x, y)
    gradients = torch.autograd.grad(loss, list(algorithm.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert (abs(loss - algorithm.risks(x, y).mean()) > 1e-9) == (count == 2)
