"""Adaptation at prediction time: against plain float64 versions, and without any trace in the model."""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import domainwise as dw
from domainwise.algorithms.base import Algorithm
from domainwise.core.errors import UserError
from domainwise.models.adapt import T3A, AdaptedModel, Tent
from domainwise.nets.network import Network
from domainwise.nets.resnet import FrozenBatchNorm2d
from small_problems import CLASSES, SHAPE, make

IMAGES = np.random.default_rng(0).integers(0, 256, (140, 3, 8, 8), np.uint8)


def normalised(norm: type[nn.BatchNorm2d] = nn.BatchNorm2d) -> Algorithm:
    """ERM in float64 on a network with BatchNorm that has seen something."""
    torch.manual_seed(0)
    layer = norm(4)
    features = nn.Sequential(nn.Conv2d(SHAPE[0], 4, 3), layer, nn.Tanh(), nn.Flatten(), nn.Linear(64, 5))
    features.out_features = 5
    made = make("ERM", net=Network(features, CLASSES))
    layer.running_mean.copy_(torch.randn(4))
    layer.running_var.copy_(torch.rand(4) + 0.5)
    return made.eval()


def stream(*sizes: int) -> Iterator[Tensor]:
    random = torch.Generator().manual_seed(1)
    for size in sizes:
        yield torch.rand(size, *SHAPE, generator=random, dtype=torch.float64)


@pytest.mark.parametrize("keep", [1, 3, -1])
def test_t3a_follows_its_equations(keep: int) -> None:
    """With weights of several lengths: of one per class, features take the place of the shortest alone."""
    algorithm = make("ERM").eval()
    network = algorithm.network
    with torch.no_grad():
        network.classifier.weight.mul_(torch.tensor([[8.0], [3.0], [1.0]]))
    adapted = T3A(algorithm, keep)
    weight, bias = network.classifier.weight.detach(), network.classifier.bias.detach()

    def entropy(z: Tensor) -> float:
        p = torch.softmax(weight @ z + bias, 0)
        return float(-(p * p.log()).sum())

    supports: dict[int, list[tuple[float, Tensor]]] = {k: [(entropy(weight[k]), weight[k])] for k in range(CLASSES)}
    for x in stream(7, 1, 5, 8):
        features = network.represent(x).detach()
        for z in features:
            supports[int((weight @ z + bias).argmax())].append((entropy(z), z))
        for k, known in supports.items():
            supports[k] = sorted(known, key=lambda one: one[0])[: keep if keep > 0 else None]
        sums = [sum(z / z.norm() for _, z in supports[k]) for k in range(CLASSES)]
        expected = torch.stack([torch.stack([z @ c / c.norm() for c in sums]) for z in features])
        torch.testing.assert_close(adapted(x), expected, rtol=1e-12, atol=1e-12)
    kept = [any(torch.equal(z, weight[k]) for _, z in supports[k]) for k in range(CLASSES)]
    assert kept == [True, True, keep != 1]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, FrozenBatchNorm2d])
def test_tent_follows_its_equations(norm: type[nn.BatchNorm2d]) -> None:
    algorithm = normalised(norm)
    convolution, layer, _, _, linear = copy.deepcopy(algorithm.network.features)
    classifier = copy.deepcopy(algorithm.network.classifier)
    gamma, beta = (p.detach().clone().requires_grad_() for p in (layer.weight, layer.bias))
    optimizer = torch.optim.Adam([gamma, beta], 1e-2)
    adapted = Tent(algorithm, lr=1e-2)
    for x in stream(6, 4, 9):
        y = convolution(x)
        mean, variance = y.mean((0, 2, 3), keepdim=True), y.var((0, 2, 3), unbiased=False, keepdim=True)
        y = gamma.view(-1, 1, 1) * (y - mean) / (variance + layer.eps).sqrt() + beta.view(-1, 1, 1)
        logits = classifier(linear(y.tanh().flatten(1)))
        p = logits.softmax(1)
        torch.testing.assert_close(adapted(x), logits.detach(), rtol=1e-9, atol=1e-9)
        optimizer.zero_grad()
        (-(p * p.log()).sum(1).mean()).backward()
        optimizer.step()
    assert not torch.equal(gamma, layer.weight)
    torch.testing.assert_close(algorithm.network.features[1].weight.detach(), gamma.detach(), rtol=1e-9, atol=1e-9)


def test_tent_changes_scale_and_shift_alone_and_leaves_a_single_input_to_the_stored_statistics() -> None:
    algorithm = normalised()
    before = {name: value.clone() for name, value in algorithm.state_dict().items()}
    adapted = Tent(algorithm)
    (one,) = stream(1)
    plain = algorithm.predict(one).detach()
    assert torch.equal(adapted(one), plain)
    for x in stream(5, 5):
        adapted(x)
    changed = {name for name, value in algorithm.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"network.features.1.weight", "network.features.1.bias"}


def test_tent_without_statistics_of_a_batch_adapts_scale_and_shift() -> None:
    features = nn.Sequential(nn.Conv2d(SHAPE[0], 4, 3), nn.GroupNorm(2, 4), nn.Flatten())
    features.out_features = 64
    algorithm = make("ERM", net=Network(features, CLASSES)).eval()
    plain = [algorithm.predict(x).detach() for x in stream(5, 5)]
    adapted = [Tent(algorithm)(x) for x in stream(5)]
    torch.testing.assert_close(adapted[0], plain[0])
    assert not torch.equal(algorithm.predict(next(iter(stream(5)))), plain[0])


@pytest.mark.parametrize(("name", "message"), [("MTL", "T3A needs a model with one"), ("ERM", "normalisation")])
def test_what_cannot_be_adapted_is_refused_at_once(name: str, message: str) -> None:
    algorithm = make(name).eval()
    with pytest.raises(UserError, match=message):
        T3A(algorithm) if name == "MTL" else Tent(algorithm)
    if name == "MTL":
        with pytest.raises(UserError, match="depend on their batch already"):
            Tent(algorithm)


@pytest.fixture(scope="module")
def model() -> dw.Model:
    draw = np.random.default_rng(1)
    domains = {f"d{d}": (draw.integers(0, 256, (40, 3, 8, 8), np.uint8), np.arange(40) % 2) for d in range(2)}
    data = dw.Environments.from_arrays(domains, classes=("a", "b"))
    return dw.fit(data, "ERM", network="mnist-cnn", steps=2, hparams={"batch_size": 4}, device="cpu")


@pytest.mark.parametrize("method", ["t3a", "tent"])
def test_nothing_of_it_changes_the_model_or_its_files(model: dw.Model, tmp_path: Path, method: str) -> None:
    folder = model.save(tmp_path)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    loaded = dw.load_model(folder, device="cpu")
    before = loaded.predict_proba(IMAGES)
    adapted = loaded.adapt(method)
    first = adapted.predict_proba(IMAGES)
    assert not np.array_equal(first, before)
    assert loaded.predict_proba(IMAGES).tobytes() == before.tobytes()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert adapted.predict_proba(IMAGES).tobytes() != first.tobytes(), "it goes on adapting"
    adapted.reset()
    again = np.concatenate([adapted.predict_proba(IMAGES[:128]), adapted.predict_proba(IMAGES[128:])])
    assert again.tobytes() == first.tobytes()
    assert pickle.loads(pickle.dumps(adapted)).predict_proba(IMAGES).tobytes() == first.tobytes()
    for refused in (lambda: adapted.save(tmp_path), lambda: adapted.export(tmp_path / "m.onnx")):
        with pytest.raises(UserError, match="adapted to its inputs is not"):
            refused()


def test_every_domain_is_adapted_to_anew(model: dw.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(2)
    domains = {name: (draw.integers(0, 256, (30, 3, 8, 8), np.uint8), np.arange(30) % 2) for name in ("x", "y")}
    alone = [model.adapt("tent", lr=0.1).predict_proba(inputs) for inputs, _ in domains.values()]
    together: list[Tensor] = []

    def kept(adapted: AdaptedModel, inputs: Tensor, domain: str | None = None) -> Tensor:
        together.append(plain(adapted, inputs, domain))
        return together[-1]

    plain = AdaptedModel.probabilities
    monkeypatch.setattr(AdaptedModel, "probabilities", kept)
    adapted = model.adapt("tent", lr=0.1)
    adapted.evaluate(dw.Environments.from_arrays(domains, classes=("a", "b")))
    assert [found.numpy().tobytes() for found in together] == [expected.tobytes() for expected in alone]
    assert "one domain" in adapted.assumes and adapted.batch_dependent


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("t3", {}, "unknown way to adapt 't3': did you mean 't3a'"),
        ("t3a", {"lr": 0.1}, "t3a has no lr; it has: keep"),
        ("tent", {"keep": 3}, "tent has no keep; it has: lr"),
        ("t3a", {"keep": 0}, r"at least 1 support per class, or all \(-1\), not 0"),
        ("t3a", {"keep": 1.5}, "not 1.5"),
        ("tent", {"lr": 0.0}, "step size must be above 0"),
        ("tent", {"lr": float("nan")}, "step size must be above 0"),
    ],
)
def test_settings_that_make_no_sense(model: dw.Model, method: str, settings: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        model.adapt(method, **settings)


def test_cosines_decide_between_centroids() -> None:
    """A class with one support and a class with many of the same direction are equals."""
    algorithm = make("ERM").eval()
    adapted = T3A(algorithm)
    adapted.supports = torch.cat([adapted.supports, adapted.supports[:1].repeat(9, 1)])
    adapted.labels = torch.cat([adapted.labels, torch.zeros(9, dtype=torch.int64)])
    weight = algorithm.network.classifier.weight.detach()
    torch.testing.assert_close(adapted.centroids(), F.normalize(weight, dim=1))
