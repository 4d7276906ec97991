"""Methods with discriminators beyond DANN's, in float64; see tests/support/references.py."""

import pytest
import torch
from torch import Tensor, nn

from domainwise.algorithms.base import Algorithm
from domainwise.algorithms.contrast import supervised_contrast
from references import Adam, Step, compare, noise, risk, same_course
from small_problems import advance, batches, make


def leaky(layers: nn.Sequential, h: Tensor) -> Tensor:
    """Linear layers with leaky ReLUs in between."""
    linear = list(layers)[::2]
    for layer in linear[:-1]:
        h = h @ layer.weight.T + layer.bias
        h = h.clamp_min(0) + 0.01 * h.clamp_max(0)
    return (h @ linear[-1].weight.T + linear[-1].bias)[:, 0]


@pytest.mark.parametrize(("activation", "hidden"), [("tanh", 1), ("relu", 2)])
def test_urm(activation: str, hidden: int) -> None:
    stream = noise()

    def reference(twin: Algorithm) -> Step:
        assert [layer.out_features for layer in list(twin.discriminator)[::2]] == [100] * (hidden + 1) + [1]
        network_adam = Adam(twin.network.parameters(), 0.01, 0.1)
        critic_adam = Adam(twin.discriminator.parameters(), 0.02, 0.1)

        def step(x: Tensor, y: Tensor, number: int) -> Tensor:
            z = twin.network.features(x.flatten(0, 1))
            z = (z.exp() - (-z).exp()) / (z.exp() + (-z).exp()) if activation == "tanh" else z.clamp_min(0)
            true = leaky(twin.discriminator, z).sigmoid()
            fooled = sum(-p.log() for p in true) / len(true)
            loss = risk(twin.network.classifier, z, y.flatten()) + 0.3 * fooled
            network_adam.step(loss)
            uniform = torch.rand(3, 4, 5, generator=stream, dtype=torch.float64).flatten(0, 1)
            uniform = 2 * uniform - 1 if activation == "tanh" else uniform
            real, fake = (leaky(twin.discriminator, one).sigmoid() for one in (uniform, z.detach()))
            told = sum(-p.log() for p in real) / len(real) + 0.3 * sum(-(1 - p).log() for p in fake) / len(fake)
            critic_adam.step(told)
            return loss

        return step

    settings = {"lambda": 0.3, "activation": activation, "hidden_layers": hidden, "lr_d": 0.02, "weight_decay": 0.1}
    same_course("URM", reference, **settings)


def test_urms_features_end_in_its_activation() -> None:
    x = batches(1)[0][0][0]
    for activation, low, high in (("tanh", -1.0, 1.0), ("relu", 0.0, 100.0)):
        algorithm = make("URM", activation=activation)
        z = algorithm.embed(10 * x)
        assert z.min() >= low and z.max() <= high and not torch.equal(z, algorithm.network.features(10 * x))
        assert torch.equal(algorithm.predict(10 * x), algorithm.network.classifier(z))


def relu_layers(layers: nn.Sequential, h: Tensor) -> Tensor:
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer in linear[:-1]:
        h = (h @ layer.weight.T + layer.bias).clamp_min(0)
    return h @ linear[-1].weight.T + linear[-1].bias


def contrast(z: Tensor, labels: list[int]) -> Tensor:
    units = []
    for one in z:
        long = one.detach().pow(2).sum().sqrt() >= 0.01
        units.append(one / one.pow(2).sum().sqrt() if long else one / 0.01)
    terms = []
    for i, mine in enumerate(units):
        weights = {j: (mine @ other / 0.07).exp() for j, other in enumerate(units) if j != i}
        alike = [j for j in weights if labels[j] == labels[i]]
        if alike:
            terms.append(-sum((weights[j] / sum(weights.values())).log() for j in alike) / len(alike))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("apart", [False, True], ids=["equal starts", "different starts"])
def test_adrmx(apart: bool) -> None:
    algorithm, twin = (make("ADRMX", lr=0.01, weight_decay=0.1, mlp_depth=3, **{"lambda": 0.6}) for _ in range(2))
    for one in (algorithm, twin):
        for classifier in (one.network.classifier, one.domain_network.classifier, one.invariant_classifier):
            for bias in list(classifier.parameters())[1:-1:2]:
                bias.data += 1  # so that few of the few hidden units are dead
        shift = torch.Generator().manual_seed(8)
        for weights in one.domain_network.parameters():
            weights.data += 0.2 * apart * torch.randn(weights.shape, generator=shift, dtype=torch.float64)
    rest = [*twin.network.parameters(), *twin.domain_network.parameters(), *twin.invariant_classifier.parameters()]
    rest_adam, critic_adam = (
        Adam(rest, 0.01, 0.1, (0.5, 0.9)),
        Adam(twin.discriminator.parameters(), 0.01, 0.1, (0.5, 0.9)),
    )
    stream, turns = noise(), ""
    assert [tuple(p.shape) for p in twin.discriminator.parameters()][::2] == [(256, 5), (256, 256), (3, 256)]
    shapes = [tuple(p.shape) for p in twin.invariant_classifier.parameters()][::2]
    assert shapes == [(3, 5), (3, 3), (3, 3)], "a half and a quarter of five, or three"

    def told(inputs: Tensor, domains: Tensor) -> Tensor:
        return risk(lambda z: relu_layers(twin.discriminator, z), inputs, domains)

    for number, (x, y) in enumerate(batches(8)):
        labels, domains = y.flatten(), torch.arange(3).repeat_interleave(4)
        z, d = twin.network.features(x.flatten(0, 1)), twin.domain_network.features(x.flatten(0, 1))
        if number in (1, 4, 7):
            turns += "n"

            def classify(inputs: Tensor) -> Tensor:
                return relu_layers(twin.network.classifier, inputs)

            assert classify(z).std(0).min() > 1e-3, "it depends on its inputs"
            total = risk(classify, z, labels)
            total = total + risk(lambda i: relu_layers(twin.invariant_classifier, i), z - d, labels)
            total = total + risk(lambda i: relu_layers(twin.domain_network.classifier, i), d, domains)
            total = total + contrast(z, labels.tolist()) + contrast(z - d, labels.tolist())
            keys = torch.rand(2, 12, generator=stream, dtype=torch.float64).tolist()
            for label in range(3):
                members = [i for i in range(12) if labels[i] == label]
                first = max(members, key=lambda i: keys[0][i], default=None)
                abroad = [i for i in members if domains[i] != domains[first]]
                if not abroad:
                    continue
                second = max(abroad, key=lambda i: keys[1][i])
                remixed = z[first] - d[first] + d[second]
                total = total + risk(classify, remixed[None], torch.tensor([label])) / 3
            total = total - 0.6 * told(z - d, domains)
            rest_adam.step(total)
        else:
            turns += "d"
            total = told((z - d).detach(), domains)
            critic_adam.step(total)
        (loss,) = advance(algorithm, [(x, y)], first=number)
        compare(algorithm, twin, (loss, total), number)
    assert turns == "dnddnddn"


def test_a_remix_takes_the_domains_part_from_another_domain_or_is_left_out() -> None:
    """Class 0 is in domains 0 and 1, class 1 in domain 2 alone, class 2 nowhere: one loss, divided by three classes."""
    algorithm, y = make("ADRMX"), torch.tensor([[0] * 4, [0] * 4, [1] * 4])
    features = torch.eye(12, dtype=torch.float64).view(3, 4, 12)
    seen: list[Tensor] = []

    def classify(inputs: Tensor) -> Tensor:
        seen.append(inputs)
        return inputs[:, :3]

    algorithm.network.classify = classify
    chosen = set()
    for _ in range(60):
        loss = algorithm.remix_risk(features, 100 * features, y)
        remix = seen.pop()[0]
        first, second = int((remix == 1).nonzero()), int((remix == 100).nonzero())
        chosen.add((first, second))
        assert loss == pytest.approx(float(nn.functional.cross_entropy(remix[None, :3], torch.tensor([0]))) / 3)
    assert {(a // 4, b // 4) for a, b in chosen} == {(0, 1), (1, 0)} and len(chosen) > 20


def test_directions_of_short_vectors_have_no_large_gradients() -> None:
    """Both networks start alike: with dropout some differences of their features are zero, and others are not."""
    z = torch.randn(3, 4, 5, generator=noise(), dtype=torch.float64)
    z[0, 1] = 0
    z[1, 2] *= 1e-9
    (gradient,) = torch.autograd.grad(supervised_contrast(z.requires_grad_(), batches(1)[0][1]), z)
    assert 1 < gradient.abs().max() < 1e3


def test_adrmx_predicts_by_the_networks_features() -> None:
    algorithm, x = make("ADRMX"), batches(1)[0][0][0]
    before = algorithm.predict(x)
    for part in (algorithm.domain_network, algorithm.invariant_classifier, algorithm.discriminator):
        for weights in part.parameters():
            weights.data.zero_()
    assert torch.equal(algorithm.predict(x), before)
