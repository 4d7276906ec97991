"""Methods of the domains' gradients against straight-line versions in float64; see tests/support/references.py."""

import copy
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from domainwise.algorithms.base import Algorithm
from domainwise.algorithms.gradients import variance
from domainwise.nets.network import Network
from references import Step, adam, agree, descending, noise, risk, risks, same_course, shuffled
from small_problems import CLASSES, advance, batches, features, make


def test_fishr() -> None:
    """With the gradient of every sample, by autograd."""
    averages: list[Tensor | float] = [0.0, 0.0, 0.0]

    def fishr(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        weight = 900.0 if number >= 2 else 0.0
        twin.weight.fill_(weight)
        head, used = twin.network.classifier, []
        for e in range(len(x)):
            z = twin.network.features(x[e])
            gradients = []
            for i in range(len(z)):
                loss = risk(head, z[i : i + 1], y[e, i : i + 1])
                by_weight, by_bias = torch.autograd.grad(loss, [head.weight, head.bias], create_graph=True)
                gradients.append(torch.cat([by_weight, by_bias[:, None]], 1).flatten())
            mean = sum(gradients) / len(gradients)
            variance = sum((gradient - mean) ** 2 for gradient in gradients) / len(gradients)
            average = 0.8 * averages[e] + 0.2 * variance
            averages[e] = average.detach()
            twin.variances[e] = average.detach()
            used.append(average / 0.2)
        centre = sum(used) / len(used)
        penalty = sum(((one - centre) ** 2).sum() / one.numel() for one in used) / len(used)
        return sum(risks(twin, x, y)) / len(x) + weight * penalty

    same_course("Fishr", descending(fishr, restart_at=2), penalty=900.0, anneal=2, ema=0.8, weight_decay=0.1)


def norm_net() -> Network:
    """With a BatchNorm that learns, whose statistics are buffers."""
    body = features()
    return Network(nn.Sequential(*body, nn.BatchNorm1d(5)), CLASSES, feature_size=5).double()


@pytest.mark.parametrize("live", [False, True], ids=["plain", "BatchNorm"])
def test_fish(live: bool) -> None:
    settings = {"meta_lr": 0.3, "lr": 0.01, "weight_decay": 0.1}
    fish, twin = (make("Fish", net=norm_net() if live else None, **settings) for _ in range(2))
    inner, stream = copy.deepcopy(twin.network), noise()
    optimiser = adam(twin, inner.parameters())
    for number, (x, y) in enumerate(batches(4)):
        inner.load_state_dict(twin.network.state_dict())
        losses = []
        for e in shuffled(3, stream):
            losses.append(risk(inner, x[e], y[e]))
            optimiser.step(losses[-1])
        with torch.no_grad():
            for name, tensor in twin.network.state_dict().items():
                tensor.copy_(0.7 * tensor + 0.3 * inner.state_dict()[name] if tensor.is_floating_point() else tensor)
        (loss,) = advance(fish, [(x, y)], first=number)
        agree((loss, sum(losses).detach() / 3))
        for name, tensor in twin.network.state_dict().items():
            if tensor.is_floating_point():
                agree((fish.network.state_dict()[name], tensor))
    if live:
        assert int(fish.network.features[-1].num_batches_tracked) == 12


def masked(name: str, mask: object, **hparams: float) -> None:
    def reference(twin: Algorithm) -> Step:
        parameters = list(twin.network.parameters())
        optimiser = adam(twin, parameters)

        def step(x: Tensor, y: Tensor, number: int) -> Tensor:
            values = risks(twin, x, y)
            by_domain = [torch.autograd.grad(value, parameters) for value in values]
            followed = []
            for k in range(len(parameters)):
                entries = [[float(g[k].flatten()[i]) for g in by_domain] for i in range(parameters[k].numel())]
                kept = [mask(entry) for entry in entries]
                share = sum(kept) / len(kept)
                flat = [m * sum(entry) / 3 / (share + 1e-10) for m, entry in zip(kept, entries, strict=True)]
                followed.append(torch.tensor(flat, dtype=torch.float64).view_as(parameters[k]))
            optimiser.apply(followed)
            return sum(values) / 3

        return step

    same_course(name, reference, **hparams)


def agreed(entry: list[float]) -> float:
    return abs(sum((g > 0) - (g < 0) for g in entry)) / len(entry)


@pytest.mark.parametrize(("tau", "decay"), [(1.0, 0.0), (0.3, 0.1)])
def test_and_mask(tau: float, decay: float) -> None:
    masked("ANDMask", lambda entry: float(agreed(entry) >= tau), tau=tau, weight_decay=decay)


@pytest.mark.parametrize(("tau", "k"), [(0.5, 1e-4), (0.2, 1e-5), (0.5, 10.0)])
def test_sand_mask(tau: float, k: float) -> None:
    """With k so small that the mask is between 0 and 1, and with the default's, which saturates."""

    def mask(entry: list[float]) -> float:
        mean = sum(entry) / 3
        variance = sum((g - mean) ** 2 for g in entry) / 2
        return max(0.0, float(torch.tanh(torch.tensor(k / variance * (agreed(entry) - tau), dtype=torch.float64))))

    masked("SANDMask", mask, tau=tau, k=k, weight_decay=0.1)


@pytest.mark.parametrize("domains", [2, 3, 5])
def test_variance_over_domains_is_torchs(domains: int) -> None:
    gradients = torch.randn(domains, 7, 11, generator=torch.Generator().manual_seed(domains))
    torch.testing.assert_close(variance(gradients), gradients.var(0), rtol=1e-4, atol=1e-7)
    assert variance(torch.ones(domains, 3)).eq(0).all()


def test_the_mask_of_a_wide_layer_is_quick_on_a_cpu() -> None:
    """Beside ANDMask's, on the first layer of the mlp: torch's own variance takes far longer."""
    gradients = torch.randn(2, 390, 1568)
    seconds = {name: min(timed(make(name).mask, gradients) for _ in range(5)) for name in ("ANDMask", "SANDMask")}
    assert seconds["SANDMask"] < 40 * seconds["ANDMask"]


def timed(call: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The seconds of this thread, which other programs hardly change."""
    began = time.thread_time()
    call(x)
    return time.thread_time() - began


def test_a_mask_of_nothing_stops_all_and_domains_that_are_alike_mask_nothing() -> None:
    """DomainBed's default of SANDMask, tau = 1; and variances of zero, by which nothing may be divided."""
    stopped, (x, y) = make("SANDMask", tau=1.0), batches(1)[0]
    before = [p.detach().clone() for p in stopped.parameters()]
    alike = (x[:1].expand_as(x).contiguous(), y[:1].expand_as(y).contiguous())
    advance(stopped, [(x, y), alike])
    assert all(torch.equal(a, b) for a, b in zip(before, stopped.parameters(), strict=True))
    nets = [make(name, lr=0.01) for name in ("ERM", "ANDMask", "SANDMask")]
    for algorithm in nets:
        advance(algorithm, [alike] * 3)
    for other in nets[1:]:
        for a, b in zip(nets[0].parameters(), other.parameters(), strict=True):
            agree((a.detach(), b.detach()))


@pytest.mark.parametrize("name", ["ANDMask", "SANDMask", "MLDG"])
def test_gradients_set_by_hand_have_the_layout_of_the_weights(name: str) -> None:
    """Images are read channels last, and so are weights; a fused Adam takes both as they lie in memory."""
    plain, other = (make(name, lr=0.01) for _ in range(2))
    other.network.to(memory_format=torch.channels_last)
    other.optimizers = other.make_optimizers()
    for algorithm in (plain, other):
        advance(algorithm, batches(3))
    assert not other.network.features[0].weight.is_contiguous()
    for a, b in zip(plain.parameters(), other.parameters(), strict=True):
        agree((a.detach(), b.detach()))


def test_iga() -> None:
    def iga(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        values = risks(twin, x, y)
        parameters = list(twin.parameters())
        by_domain = [torch.autograd.grad(value, parameters, create_graph=True) for value in values]
        together = torch.autograd.grad(sum(values) / 3, parameters, create_graph=True)
        penalty = 0.0
        for gradients in by_domain:
            for g, mean in zip(gradients, together, strict=True):
                penalty = penalty + ((g - mean) ** 2).sum()
        return sum(values) / 3 + 20.0 * penalty

    same_course("IGA", descending(iga), penalty=20.0, weight_decay=0.1)
