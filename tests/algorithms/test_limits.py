"""Known limits: where one method turns into another, and what must stay bounded, zero, normalised or independent."""

import ast
import copy
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from domainwise import algorithms
from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Algorithm
from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.engine.evaluation import evaluate
from domainwise.nets.network import Network
from references import Adam, agree, erm, small_sets
from small_problems import CLASSES, SHAPE, advance, batches, features, make, weights

FAST = {"lr": 0.01}


def course(name: str, data: list[tuple[Tensor, Tensor]], **hparams: object) -> Tensor:
    """The network's weights after training."""
    algorithm = make(name, domains=len(data[0][0]), **FAST, **hparams)
    advance(algorithm, data)
    return weights(algorithm)


@pytest.mark.parametrize(
    ("name", "hparams"),
    [
        ("IRM", {"penalty": 0.0, "anneal": 0}),
        ("VREx", {"penalty": 0.0, "anneal": 0}),
        ("LDAT", {"penalty": 0.0, "anneal": 0}),
        ("SD", {"penalty": 0.0}),
        ("IB_ERM", {"penalty": 0.0, "anneal": 0}),
        ("IB_IRM", {"penalty": 0.0, "anneal": 0, "ib_penalty": 0.0, "ib_anneal": 0}),
        ("IGA", {"penalty": 0.0}),
        ("CORAL", {"gamma": 0.0}),
        ("MMD", {"gamma": 0.0}),
        ("CausIRL_CORAL", {"gamma": 0.0}),
        ("CausIRL_MMD", {"gamma": 0.0}),
        ("CAD", {"lambda": 0.0}),
        ("CondCAD", {"lambda": 0.0}),
        ("Transfer", {"lambda": 0.0}),
        ("GroupDRO", {"eta": 0.0}),
        ("MLDG", {"beta": 0.0}),
        ("ADA", {"phases": 0}),
    ],
)
def test_without_its_term_a_method_is_erm(name: str, hparams: dict[str, float]) -> None:
    data = batches(5)
    agree((course(name, data, **hparams), course("ERM", data)))
    if "phases" not in hparams:
        with_term = course(name, data, **{key: 5 if key == "penalty" else 1 for key in hparams})
        assert (with_term - course("ERM", data)).abs().max() > 1e-4, "with its term it is not"


def test_mixup_with_all_shares_one_is_erm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ALGORITHMS["Mixup"], "shares", lambda _: torch.ones(3, dtype=torch.float64))
    data = batches(5)
    agree((course("Mixup", data), course("ERM", data)))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_shares_have_the_moments_of_beta(alpha: float) -> None:
    """Beta(alpha, alpha): mean 1/2, variance 1 / (4 (2 alpha + 1))."""
    mixup = make("Mixup", alpha=alpha, domains=2000)
    shares, var = mixup.shares(), 1 / (4 * (2 * alpha + 1))
    assert shares.shape == (2000,) and shares.min() >= 0 and shares.max() <= 1
    assert abs(shares.mean() - 0.5) < 4 * math.sqrt(var / 2000)
    assert shares.var() == pytest.approx(var, rel=0.12)


def test_wrm_tends_to_erm_as_moving_becomes_dear() -> None:
    data = batches(4)
    target = course("ERM", data)
    gaps = [float((course("WRM", data, gamma=10.0**k) - target).abs().max()) for k in (0, 1, 2, 4, 6, 8)]
    assert gaps == sorted(gaps, reverse=True) and len(set(gaps)) == len(gaps)
    assert gaps[0] > 1e-4 and gaps[-1] < 1e-6


def alike(steps: int) -> list[tuple[Tensor, Tensor]]:
    """Batches that are the same in all three domains."""
    return [(x.expand(3, *x.shape[1:]).clone(), y.expand(3, -1).clone()) for x, y in batches(steps, domains=1)]


HEAVY = [
    *(("CORAL", {"gamma": 50.0}), ("MMD", {"gamma": 50.0}), ("VREx", {"penalty": 1e4, "anneal": 0})),
    *(("Fishr", {"penalty": 1e4, "anneal": 0}), ("IGA", {"penalty": 1e3}), ("Transfer", {"lambda": 50.0})),
]


@pytest.mark.parametrize(("name", "hparams"), HEAVY)
def test_domains_that_are_alike_cost_nothing(name: str, hparams: dict[str, float]) -> None:
    data = alike(4)
    heavy, plain = make(name, **FAST, **hparams), make("ERM", **FAST)
    for ours, expected in zip(advance(heavy, data), advance(plain, data), strict=True):
        assert abs(ours - expected) < 1e-10
    agree((weights(heavy), weights(plain)))


@pytest.mark.parametrize(("name", "hparams"), HEAVY)
def test_penalties_are_differentiable_where_all_features_coincide(name: str, hparams: dict[str, float]) -> None:
    algorithm = make(name, **hparams)
    x, y = torch.full((3, 4, *SHAPE), 0.3, dtype=torch.float64), batches(1)[0][1]
    assert all(torch.isfinite(loss) for loss in advance(algorithm, [(x, y)] * 3))
    assert torch.isfinite(weights(algorithm)).all()


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize(("kept", "domains"), [("DAT", 3), ("UAT", 1)])
def test_one_step_of_at_on_single_samples_is(
    kept: str, domains: int, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step from a zero start of DAT, and of UAT with one domain."""
    monkeypatch.setattr(ALGORITHMS["AT"], "steps", 1)
    data, settings = batches(1, domains=domains, size=1), {"start": "zero", "norm": norm, "eps": 0.5, "alpha": 0.4}
    agree((course("AT", data, **settings), course(kept, data, **settings)))
    assert (course("AT", data, **settings) - course("ERM", data)).abs().max() > 1e-8


def test_an_ensemble_of_one_is_uat() -> None:
    data, unseen = batches(4, domains=1), batches(1, seed=9)[0][0][0]
    one, uat = make("EnsembleUAT", domains=1, **FAST), make("UAT", domains=1, **FAST)
    advance(one, data), advance(uat, data)
    agree((weights(one), weights(uat)))
    agree((one.predict(unseen).softmax(1).detach(), uat.predict(unseen).softmax(1).detach()))


def test_rsc_without_drops_mutes_one_feature_of_one_sample() -> None:
    """Percentile 100 is the maximum, and not below it is the maximum itself: f = b = 0 is not quite ERM."""
    rsc, (x, y) = make("RSC", f_drop=0.0, b_drop=0.0), batches(1)[0]
    with torch.no_grad():
        z, labels, head = rsc.network.features(x.flatten(0, 1)), y.flatten(), rsc.network.classifier
        losses = nn.functional.cross_entropy(head(z), labels, reduction="none")
        confidences = head(z).softmax(1)[range(12), labels]
        muted = z.clone()
        muted[range(12), head.weight[labels].argmax(1)] = 0
        changed = int((confidences - head(muted).softmax(1)[range(12), labels]).argmax())
        losses[changed] = nn.functional.cross_entropy(head(muted), labels, reduction="none")[changed]
    agree((rsc.loss(x, y).detach(), losses.mean()))


@pytest.mark.parametrize("b_drop", [0.0, 0.5, 1.0])
def test_rsc_is_erm_when_the_favourite_feature_is_a_dead_one(b_drop: float) -> None:
    def net() -> Network:
        body = nn.Sequential(*features(), nn.ReLU())
        body[3].bias.data[0] = -1e3
        network = Network(body, CLASSES, feature_size=5)
        network.classifier.weight.data[:, 0] = 10.0
        return network

    rsc, plain = make("RSC", net=net(), f_drop=0.0, b_drop=b_drop, **FAST), make("ERM", net=net(), **FAST)
    advance(rsc, batches(4)), advance(plain, batches(4))
    agree((weights(rsc), weights(plain)))


@pytest.mark.parametrize("name", ["DANN", "CDANN"])
@pytest.mark.parametrize("d_steps", [1, 2])
def test_domain_games_at_lambda_zero_are_erm_on_the_network_steps(name: str, d_steps: int) -> None:
    algorithm = make(name, d_steps=d_steps, **FAST, **{"lambda": 0.0})
    alone = make("ERM").network
    optimiser = Adam(alone.parameters(), 0.01, betas=(0.5, 0.9))
    phases = ""
    for number, (x, y) in enumerate(batches(6)):
        network, critic = weights(algorithm), nn.utils.parameters_to_vector(algorithm.discriminator.parameters())
        advance(algorithm, [(x, y)], first=number)
        network_moved = not torch.equal(network, weights(algorithm))
        critic_moved = not torch.equal(critic, nn.utils.parameters_to_vector(algorithm.discriminator.parameters()))
        assert network_moved != critic_moved, "a step moves one of them"
        phases += "n" if network_moved else "d"
        if network_moved:
            optimiser.step(erm(alone, x, y))
    assert phases == ("ndndnd" if d_steps == 1 else "dnddnd")
    agree((weights(algorithm), nn.utils.parameters_to_vector(alone.parameters()).detach()))


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_sagnet_at_weight_zero_ignores_its_style_branch(weight: float) -> None:
    """(It is not ERM then: content still sees swapped styles, and Adam's momentum moves the features twice.)"""
    a, b = (make("SagNet", adversarial_weight=weight, **FAST) for _ in range(2))
    b.style.weight.data.mul_(-3)
    advance(a, batches(3)), advance(b, batches(3))
    assert torch.equal(weights(a), weights(b)) == (weight == 0)


def test_mtl_embeddings_are_exponential_averages_of_mean_features() -> None:
    algorithm, data = make("MTL", ema=0.9, lr=0.0), batches(5)
    advance(algorithm, data)
    means = [algorithm.network.features(x.flatten(0, 1)).unflatten(0, (3, 4)).mean(1).detach() for x, _ in data]
    agree((algorithm.embeddings, sum(0.9 * 0.1 ** (4 - t) * mean for t, mean in enumerate(means))))


@pytest.mark.parametrize(("memory", "phases"), [(7, 3), (2, 5), (30, 2)])
def test_ada_grows_only_in_its_phases_and_never_beyond_its_cap(memory: int, phases: int) -> None:
    algorithm = make("ADA", min_steps=3, phases=phases, memory=memory)
    grown, draws = [], []
    for number, batch in enumerate(batches(3 * phases + 7)):
        algorithm.schedule(number, lambda number=number: draws.append(number) or batches(1, seed=5)[0])
        algorithm.step(*batch)
        grown.append(int(algorithm.grown))
    assert grown[:3] == [0, 0, 0] and grown[3] > 0
    assert grown == sorted(grown) and grown[-1] <= memory
    assert set(draws) <= {3 * phase for phase in range(1, phases + 1)}
    assert all(a == b for n, (a, b) in enumerate(pairwise(grown), 1) if n % 3)
    assert algorithm.memory_x.shape[1] == algorithm.memory_y.shape[1] == memory


def test_ada_resumes_with_what_it_remembers() -> None:
    data, settings = batches(8), {"min_steps": 2, "phases": 2, "memory": 12, **FAST}
    whole, first, second = (small_sets(make("ADA", **settings)) for _ in range(3))
    for start, stop, algorithm in ((0, 8, whole), (0, 3, first), (3, 8, second)):
        if algorithm is second:
            second.load_state(copy.deepcopy(first.state()))
        for number in range(start, stop):
            algorithm.schedule(number, lambda: data[0])
            algorithm.step(*data[number])
    assert torch.equal(weights(whole), weights(second)) and torch.equal(whole.memory_x, second.memory_x)


def test_ada_draws_every_remembered_image_as_often_as_any_original() -> None:
    sizes = (5, 40, 300)
    algorithm = small_sets(make("ADA", memory=20), sizes)
    marks = -1.0 - torch.arange(20, dtype=torch.float64)
    algorithm.memory_x.copy_(marks.view(1, -1, 1, 1, 1).expand_as(algorithm.memory_x))
    algorithm.memory_y.fill_(2)
    algorithm.grown.fill_(10)
    x, y = torch.ones(3, 20_000, *SHAPE, dtype=torch.float64), torch.zeros(3, 20_000, dtype=torch.int64)
    mixed, labels = algorithm.mix(x, y)
    seen = mixed[:, :, 0, 0, 0]
    assert torch.equal(seen < 0, labels == 2)
    for e, size in enumerate(sizes):
        for wanted, share in [
            (seen[e] < 0, 10 / (size + 10)),
            *[(seen[e] == mark, 1 / (size + 10)) for mark in marks[:10]],
        ]:
            assert abs(wanted.double().mean() - share) < 4.5 * math.sqrt(share * (1 - share) / 20_000)
    assert seen.min() == -10, "what is not filled is not drawn"


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_predictions_depend_on_their_batch_only_where_said(name: str) -> None:
    algorithm = make(name)
    advance(algorithm, batches(3))
    algorithm.eval()
    x = batches(1, size=8, seed=9)[0][0][0]
    halves = torch.cat([algorithm.predict(x[:4]), algorithm.predict(x[4:])])
    assert ((algorithm.predict(x) - halves).abs().max() > 1e-8) == (name in {"ARM", "MTL"})
    assert algorithm.batch_dependent == (name in {"ARM", "MTL"})


@pytest.mark.parametrize(("name", "groups"), [("ERM", [10, 10]), ("ARM", [4, 4, 2] * 2), ("MTL", [4, 4, 2] * 2)])
def test_evaluated_in_batches_of_the_training_size(name: str, groups: list[int]) -> None:
    def images(seed: int) -> Tensor:
        return torch.randint(0, 256, (10, *SHAPE), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)

    environments = Environments.from_arrays({d: (images(s), torch.arange(10) % CLASSES) for s, d in enumerate("abcd")})
    algorithm, calls = make(name, dtype=torch.float32), []
    predict: Callable[..., Tensor] = algorithm.predict

    def counting(x: Tensor, domain: int | None = None) -> Tensor:
        calls.append((len(x), domain))
        return predict(x, domain)

    algorithm.predict = counting
    evaluate(algorithm, environments, {(d, "in"): environments.rows(d) for d in "bd"}, ("a", "b", "c"))
    assert [size for size, _ in calls] == groups
    assert [domain for _, domain in calls] == [1] * (len(calls) // 2) + [None] * (len(calls) // 2)


WHOLE = {
    *(
        "ERM",
        "IRM",
        "VREx",
        "GroupDRO",
        "SD",
        "EQRM",
        "RDM",
        "AT",
        "UAT",
        "DAT",
        "LDAT",
        "Mixup",
        "WRM",
        "MLDG",
        "EnsembleUAT",
    ),
    *("Fish", "ANDMask", "SANDMask", "IGA", "SAM", "SAGM"),
}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_networks_without_separable_features(name: str) -> None:
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, CLASSES))
    if name not in WHOLE:
        with pytest.raises(UserError, match=f"{name} needs a network with separable features") as error:
            make(name, net=whole)
        assert "\n" not in str(error.value)
        return
    algorithm = make(name, net=whole)
    before = weights(algorithm)
    advance(algorithm, batches(2))
    assert torch.isfinite(weights(algorithm)).all() and not torch.equal(before, weights(algorithm))


@pytest.mark.parametrize("eta", [0.01, 10.0])
def test_group_weights_stay_normalised_and_favour_the_worst_domain(eta: float) -> None:
    algorithm: Algorithm = make("GroupDRO", eta=eta, lr=0.0)
    x, y = batches(1)[0]
    advance(algorithm, [(x, y)] * 40)
    assert algorithm.q.sum() == pytest.approx(1, abs=1e-12) and (algorithm.q >= 0).all()
    assert algorithm.q.argmax() == algorithm.risks(x, y).argmax()


@pytest.mark.parametrize("file", sorted(Path(algorithms.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_no_algorithm_waits_for_the_device(file: Path) -> None:
    called = {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}
    assert called.isdisjoint({"item", "cpu", "tolist", "numpy"})


def test_mldg_leaves_frozen_parameters_alone() -> None:
    net = Network(features(), CLASSES)
    net.features[0].requires_grad_(False)
    algorithm = make("MLDG", net=net)
    before = net.features[0].weight.clone()
    advance(algorithm, batches(2))
    assert torch.equal(net.features[0].weight, before)


def test_groupdro_survives_huge_risks() -> None:
    algorithm = make("GroupDRO", eta=0.1, dtype=torch.float32)
    algorithm.network.classifier.weight.data *= 1e4
    advance(algorithm, batches(3, dtype=torch.float32))
    assert torch.isfinite(algorithm.q).all() and torch.isfinite(weights(algorithm)).all()


def test_mtl_blends_the_batch_with_the_stored_embedding_of_a_known_domain() -> None:
    algorithm = make("MTL", ema=0.5)
    advance(algorithm, batches(2))
    x = batches(1)[0][0][0]
    algorithm.eval()
    z = algorithm.network.represent(x)
    v = 0.5 * z.mean(0) + 0.5 * algorithm.embeddings[1]
    expected = algorithm.network.classifier(torch.cat([z, v.expand_as(z)], 1))
    torch.testing.assert_close(algorithm.predict(x, 1), expected)
