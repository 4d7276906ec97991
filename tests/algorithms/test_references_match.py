"""Matching and style methods against straight-line versions in float64; see tests/support/references.py."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from domainwise.algorithms.base import Algorithm
from domainwise.algorithms.style import quantile
from references import Adam, Reference, Step, adam, agree, descending, noise, risk, same_course, shuffled
from small_problems import CLASSES, advance, batches, make


def matching(distance: Callable[[Tensor, Tensor], Tensor], gamma: float) -> Reference:
    """Mean risk + gamma * the mean over pairs of domains of a distance between their features."""

    def loss(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        z = [twin.network.features(x[e]) for e in range(len(x))]
        total = sum(risk(twin.network.classifier, z[e], y[e]) for e in range(len(x))) / len(x)
        pairs = [(i, j) for i in range(len(x)) for j in range(i)]
        return total + gamma * sum(distance(z[i], z[j]) for i, j in pairs) / len(pairs)

    return descending(loss)


def moments(z: Tensor) -> tuple[Tensor, Tensor]:
    mean = sum(z) / len(z)
    return mean, sum(torch.outer(one - mean, one - mean) for one in z) / (len(z) - 1)


def coral(a: Tensor, b: Tensor) -> Tensor:
    return sum(((s - t) ** 2).sum() / s.numel() for s, t in zip(moments(a), moments(b), strict=True))


def test_coral() -> None:
    same_course("CORAL", matching(coral, 5.0), gamma=5.0, weight_decay=0.1)


@pytest.mark.parametrize(("batch", "features", "unused"), [(4, 40, "gaps_by_features"), (4, 12, "gaps_by_samples")])
def test_coral_of_more_features_than_samples_and_of_fewer(
    batch: int, features: int, unused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where features outnumber samples, no matrix of features by features is made; values and gradients are equal."""
    algorithm = make("CORAL")
    monkeypatch.delattr(type(algorithm), unused)
    z = torch.randn(3, batch, features, dtype=torch.float64, generator=noise()).requires_grad_()
    expected = torch.stack([coral(z[i], z[j]) for i, j in ((0, 1), (0, 2), (1, 2))])
    distances = algorithm.distances(z)
    assert torch.allclose(distances, expected, rtol=1e-13, atol=0)
    gradients = [torch.autograd.grad(value.sum(), z)[0] for value in (distances, expected)]
    assert torch.allclose(*gradients, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("difference", [1e-1, 1e-2, 1e-3])
def test_coral_of_nearly_equal_covariances_in_float32(difference: float) -> None:
    """A small distance is a difference of large numbers: it stays exact to the rounding of the features."""
    generator = noise()
    first = torch.randn(16, 512, generator=generator).relu()
    z = torch.stack([first, first + difference * torch.randn(16, 512, generator=generator)])
    algorithm = make("CORAL", domains=2, dtype=torch.float32)
    distance = algorithm.distances(z)
    assert distance.dtype == torch.float32
    assert float(distance) == pytest.approx(float(coral(*z.double())), rel=1e-5)


def test_mmd() -> None:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        """The mean over all pairs (also of a sample with itself) of seven Gaussians of their distance."""
        squares = [((s - t) ** 2).sum() for s in a for t in b]
        return sum(sum(torch.exp(-(10.0**k) * square) for k in range(-3, 4)) for square in squares) / len(squares)

    def mmd(a: Tensor, b: Tensor) -> Tensor:
        return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)

    same_course("MMD", matching(mmd, 2.0), gamma=2.0)


def perceptron(layers: nn.Module, h: Tensor) -> Tensor:
    """Linear layers with ReLU in between, on one sample."""
    linears = [module for module in layers.modules() if isinstance(module, nn.Linear)]
    for linear in linears[:-1]:
        h = (linear.weight @ h + linear.bias).clamp_min(0)
    return linears[-1].weight @ h + linears[-1].bias


def domain_game(twin: Algorithm) -> Step:
    """DANN and CDANN: either d takes a step on telling domains apart, or features and classifier against it."""
    hp, conditional = twin.hparams, twin.embedding is not None
    betas = (hp["beta1"], 0.9)
    critic = [*twin.discriminator.parameters(), *(twin.embedding.parameters() if conditional else [])]
    network_adam = Adam(twin.network.parameters(), hp["lr"], hp["weight_decay"], betas)
    critic_adam = Adam(critic, hp["lr_d"], hp["weight_decay_d"], betas)

    def placing(z: Tensor, y: Tensor, penalty: float) -> Tensor:
        n, counts, total = y.numel(), [int((y == c).sum()) for c in range(CLASSES)], 0.0
        for e in range(len(z)):
            for i in range(len(z[e])):
                label = int(y[e, i])
                shown = z[e, i] + twin.embedding.weight[label] if conditional else z[e, i]
                if not shown.requires_grad:
                    shown = shown.clone().requires_grad_()
                logits = perceptron(twin.discriminator, shown)
                loss = logits.exp().sum().log() - logits[e]
                total = total + loss / (CLASSES * counts[label] if conditional else n)
                if penalty:
                    (gradient,) = torch.autograd.grad(loss, shown, create_graph=True)
                    total = total + penalty * (gradient**2).sum() / n
        return total

    def step(x: Tensor, y: Tensor, number: int) -> Tensor:
        z = torch.stack([twin.network.features(x[e]) for e in range(len(x))])
        if (number + 1) % (1 + hp["d_steps"]) < hp["d_steps"]:
            loss = placing(z.detach(), y, hp["gradient_penalty"])
            critic_adam.step(loss)
        else:
            told = sum(risk(twin.network.classifier, z[e], y[e]) for e in range(len(x))) / len(x)
            loss = told - hp["lambda"] * placing(z, y, 0.0)
            network_adam.step(loss)
        return loss

    return step


@pytest.mark.parametrize("name", ["DANN", "CDANN"])
@pytest.mark.parametrize("d_steps", [1, 2])
@pytest.mark.parametrize(("gradient_penalty", "beta1", "depth"), [(0.0, 0.5, 3), (3.0, 0.0, 4)])
def test_domain_games(name: str, d_steps: int, gradient_penalty: float, beta1: float, depth: int) -> None:
    settings = {"lambda": 1.5, "lr_d": 0.02, "weight_decay": 0.1, "weight_decay_d": 0.05, "mlp_width": 6}
    settings |= {"d_steps": d_steps, "gradient_penalty": gradient_penalty, "beta1": beta1, "mlp_depth": depth}
    same_course(name, domain_game, steps=6, **settings)
    widths = [m.out_features for m in make(name, **settings).discriminator.modules() if isinstance(m, nn.Linear)]
    assert widths == [6] * (depth - 1) + [3]


@pytest.mark.parametrize("ema", [0.5, 0.9, 1.0])
def test_mtl(ema: float) -> None:
    def mtl(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        total = 0.0
        for e in range(len(x)):
            z = twin.network.features(x[e])
            v = ema * sum(z) / len(z) + (1 - ema) * twin.embeddings[e]
            twin.embeddings[e] = v.detach()
            told = torch.stack([torch.cat([one, v]) for one in z])
            total = total + risk(twin.network.classifier, told, y[e])
        return total

    same_course("MTL", descending(mtl), ema=ema, weight_decay=0.1)


def test_mtl_tells_an_unseen_domain_by_its_batch() -> None:
    algorithm = make("MTL", ema=0.5)
    advance(algorithm, batches(3))
    algorithm.eval()
    z = algorithm.network.features(batches(1, seed=9)[0][0][0])
    told = torch.stack([torch.cat([one, z.mean(0)]) for one in z])
    agree((algorithm.predict(batches(1, seed=9)[0][0][0]).detach(), algorithm.network.classifier(told).detach()))


@pytest.mark.parametrize(("f_drop", "b_drop"), [(1 / 3, 1 / 3), (0.0, 0.5), (0.5, 0.0), (1.0, 1.0)])
def test_rsc(f_drop: float, b_drop: float) -> None:
    def rsc(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        head, labels = twin.network.classifier, y.flatten()
        z = torch.cat([twin.network.features(x[e]) for e in range(len(x))])
        mild, changes = [], []
        for one, label in zip(z, labels, strict=True):
            (slope,) = torch.autograd.grad(head(one)[label], one, retain_graph=True)
            keep = torch.from_numpy(slope.numpy() < np.percentile(slope.numpy(), 100 * (1 - f_drop)))
            mild.append(keep.double())
            confidence = (head(one).softmax(0)[label], head(one * mild[-1]).softmax(0)[label])
            changes.append((confidence[0] - confidence[1]).item())
        bound = np.percentile(changes, 100 * (1 - b_drop))
        seen = [one if change < bound else one * keep for one, change, keep in zip(z, changes, mild, strict=True)]
        return risk(head, torch.stack(seen), labels)

    same_course("RSC", descending(rsc), f_drop=f_drop, b_drop=b_drop)


@pytest.mark.parametrize("count", [1, 2, 5, 64])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 2 / 3, 0.99, 1.0])
def test_quantiles_are_those_of_torch(count: int, share: float) -> None:
    values = torch.randn(3, count, dtype=torch.float64, generator=noise())
    values[:, count // 2] = values[:, 0]
    expected = torch.quantile(values, share, dim=-1, keepdim=True)
    assert torch.allclose(quantile(values, share), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_sagnet(decay: float) -> None:
    stream = noise()

    def moments_of(one: Tensor) -> tuple[Tensor, Tensor]:
        mean = one.sum() / len(one)
        return mean, ((one - mean) ** 2).sum() / (len(one) - 1)

    def stylised(content_of: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        own_mean, own_var = moments_of(content_of)
        return (content_of - own_mean) / (own_var + 1e-5).sqrt() * (var + 1e-5).sqrt() + mean

    def other_style(z: Tensor) -> Tensor:
        shares, result = torch.rand(len(z), 1, generator=stream, dtype=torch.float64), []
        others = shuffled(len(z), stream)
        for one, other, share in zip(z, others, shares[:, 0], strict=True):
            style = zip(moments_of(one), moments_of(z[other]), strict=True)
            result.append(stylised(one, *(share * near + (1 - share) * far for near, far in style)))
        return torch.stack(result)

    def other_content(z: Tensor) -> Tensor:
        others = shuffled(len(z), stream)
        return torch.stack([stylised(z[o].detach(), *moments_of(one)) for one, o in zip(z, others, strict=True)])

    def reference(twin: Algorithm) -> Step:
        body, head = twin.network.features, twin.network.classifier
        body_adam, head_adam, style_adam = (adam(twin, part.parameters()) for part in (body, head, twin.style))

        def step(x: Tensor, y: Tensor, number: int) -> Tensor:
            images, labels = x.flatten(0, 1), y.flatten()
            content = risk(head, other_style(body(images)), labels)
            gradients = torch.autograd.grad(content, [*body.parameters(), *head.parameters()])
            body_adam.apply(gradients[:-2])
            head_adam.apply(gradients[-2:])
            style_adam.step(risk(twin.style, other_content(body(images)), labels))
            told = twin.style(other_content(body(images))).softmax(1)
            body_adam.step(0.7 * sum(-p.log().sum() / CLASSES for p in told) / len(told))
            return content

        return step

    same_course("SagNet", reference, adversarial_weight=0.7, weight_decay=decay)
