"""What every registered algorithm must keep, one table over all of them."""

import copy

import pytest
import torch
from torch import Tensor

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.adversarial import PersistentPerturbation
from domainwise.algorithms.match import DANN
from domainwise.core.errors import UserError
from domainwise.nets.network import Network
from small_problems import CLASSES, advance, batches, features, make, risk, weights

EVERY = sorted(ALGORITHMS)
ADVERSARIAL = ["AT", "UAT", "DAT"]
KEPT = ["UAT", "DAT"]


@pytest.mark.parametrize("name", EVERY)
def test_same_seeds_same_weights(name: str) -> None:
    a, b = make(name), make(name)
    advance(a, batches(3)), advance(b, batches(3))
    assert torch.equal(weights(a), weights(b))
    assert not torch.equal(weights(a), weights(make(name))), "three steps change the weights"


@pytest.mark.parametrize("name", EVERY)
def test_state_round_trip(name: str) -> None:
    data = batches(6)
    whole, first, second = make(name), make(name), make(name)
    advance(whole, data)
    advance(first, data[:3])
    second.load_state(copy.deepcopy(first.state()))
    advance(second, data[3:], first=3)
    assert torch.equal(weights(whole), weights(second))


@pytest.mark.parametrize("name", EVERY)
def test_risk_falls_on_a_fixed_batch(name: str) -> None:
    gentle = {"eps": 0.1, "gamma": 0.1, "head_steps": 10} | ({"penalty": 0.1} if name == "IGA" else {})
    chosen = {key: value for key, value in gentle.items() if key in ALGORITHMS[name].space}
    algorithm, data = make(name, lr=2e-2, **chosen), batches(1)
    before = risk(algorithm, *data[0])
    advance(algorithm, data * 50)
    assert risk(algorithm, *data[0]) < 0.8 * before


@pytest.mark.parametrize("name", EVERY)
def test_step_returns_a_detached_finite_loss(name: str) -> None:
    (loss,) = advance(make(name), batches(1))
    assert loss.shape == () and not loss.requires_grad and torch.isfinite(loss)


@pytest.mark.parametrize("name", EVERY)
def test_predictions_have_one_logit_per_class(name: str) -> None:
    algorithm = make(name).eval()
    assert algorithm.predict(batches(1)[0][0][0]).shape == (4, CLASSES)


@pytest.mark.parametrize("name", EVERY)
def test_one_training_domain(name: str) -> None:
    if ALGORITHMS[name].needs_domains > 1:
        with pytest.raises(UserError, match=f"{name} needs at least 2 training domains, got 1"):
            make(name, domains=1)
    else:
        algorithm = make(name, domains=1)
        advance(algorithm, batches(2, domains=1))
        assert torch.isfinite(weights(algorithm)).all()


SIMPLER = dict.fromkeys(EVERY, "ERM") | {"IB_IRM": "IRM"}
MORE_THAN_A_LOSS = ("ARM", "SagNet", "DANN", "CDANN", "ADRMX", "ERMPlusPlus")
"""They have layers or phases of their own, which leave something else than ERM's steps."""


@pytest.mark.parametrize("name", [name for name in EVERY if name not in MORE_THAN_A_LOSS and name != "ERM"])
def test_a_method_is_a_simpler_one_on_frozen_features_if_it_says_so(name: str) -> None:
    def predictions(method: str) -> Tensor:
        net = Network(features(), CLASSES)
        net.freeze_features()
        begins = {"anneal": 0, "ib_anneal": 0, "anneal_lr": 0.02, "min_steps": 1, "memory": 8}
        chosen = {key: value for key, value in begins.items() if key in ALGORITHMS[method].space}
        algorithm = make(method, net=net, lr=0.02, **chosen)
        advance(algorithm, batches(4))
        return algorithm.eval().predict(batches(1, seed=9)[0][0][0]).detach()

    difference = (predictions(name) - predictions(SIMPLER[name])).abs().max()
    assert difference == 0 if ALGORITHMS[name].moves_features else difference > 1e-6


@pytest.mark.parametrize("name", [name for name in EVERY if "anneal" in ALGORITHMS[name].space])
def test_a_method_begins_at_the_step_it_names(name: str) -> None:
    erm, late = make("ERM"), make(name, anneal=4)
    advance(erm, batches(3)), advance(late, batches(3))
    assert torch.equal(weights(erm), weights(late)) == (ALGORITHMS[name].begins_at == "anneal")


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    algorithm = make(name, dtype=dtype)
    (loss,) = advance(algorithm, batches(1, dtype=dtype))
    assert loss.dtype == weights(algorithm).dtype == dtype


@pytest.mark.parametrize("name", EVERY)
def test_bf16(name: str) -> None:
    net = Network(features(), CLASSES, precision="bf16")
    low = make(name, net=net, dtype=torch.float32)
    high = make(name, dtype=torch.float32)
    data = batches(1, dtype=torch.float32)
    assert advance(low, data)[0] == pytest.approx(advance(high, data)[0].item(), rel=0.02)
    assert weights(low).dtype == torch.float32


ORDERED = {
    "Mixup": "a random ring of pairs",
    "MLDG": "a random ring of pairs",
    "Fish": "the domains in random order",
    "SagNet": "samples swap styles at random",
    "SelfReg": "random partners",
    "ADRMX": "random partners",
    "CausIRL_CORAL": "random parts of the batches",
    "CausIRL_MMD": "random parts of the batches",
}


def swapped(name: str, **hparams: object) -> tuple[Tensor, Tensor]:
    """Predictions of two trainings, the second with domains 0 and 1 swapped and the same starts."""
    order = torch.tensor([1, 0, 2])
    a, b = make(name, **hparams), make(name, **hparams)
    if isinstance(b, PersistentPerturbation) and len(b.delta) == 3:
        b.delta.copy_(b.delta[order])
    if isinstance(b, DANN):
        for parameter in b.discriminator[-1].parameters():
            parameter.data.copy_(parameter[order].detach())
    for step, (x, y) in enumerate(batches(4)):
        advance(a, [(x, y)], first=step)
        advance(b, [(x[order], y[order])], first=step)
    x = batches(1, seed=9)[0][0][0]
    return a.eval().predict(x).detach(), b.eval().predict(x).detach()


@pytest.mark.parametrize("name", EVERY)
def test_order_of_domains_matters_only_where_the_definition_says_so(name: str) -> None:
    a, b = swapped(name, **({"start": "zero"} if name == "AT" else {}))
    assert torch.allclose(a, b, rtol=1e-9, atol=1e-11) == (name not in ORDERED)


def test_literal_updates_and_random_sample_starts_depend_on_the_order() -> None:
    for pair in (swapped("DAT", update="literal"), swapped("AT", start="random")):
        assert not torch.allclose(*pair, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize(("norm", "radius"), [("l2", lambda d: d.flatten(2).norm(dim=2)), ("linf", lambda d: d.abs())])
def test_perturbation_stays_in_its_ball_without_gradient(name: str, norm: str, radius: object) -> None:
    algorithm = make(name, eps=0.3, alpha=0.2, norm=norm)
    for batch in batches(5):
        advance(algorithm, [batch])
        assert radius(algorithm.delta).max() <= 0.3 * (1 + 1e-12)
        assert radius(algorithm.delta).max() > 0.29, "the ascent reaches the ball's surface"
        assert algorithm.delta.grad is None and not algorithm.delta.requires_grad


def test_at_perturbs_every_sample_within_its_ball() -> None:
    algorithm = make("AT", eps=0.3, alpha=0.1)
    x, y = batches(1)[0]
    delta = algorithm.ascend(x, y, algorithm.initial_delta(3, 4), 10)
    assert delta.shape == x.shape
    norms = delta.flatten(2).norm(dim=2)
    assert norms.max() <= 0.3 * (1 + 1e-12) and norms.min() > 0.0
    assert not delta.requires_grad


@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_eps_zero_is_erm_bit_by_bit(name: str, norm: str) -> None:
    """Also with live BatchNorm and dropout, whose statistics and random numbers the ascent must not touch."""

    def net() -> Network:
        torch.manual_seed(0)
        layers = torch.nn.Sequential(
            torch.nn.Conv2d(2, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Dropout(0.3),
        )
        return Network(layers, CLASSES, feature_size=64, dropout=0.5)

    erm, adversarial = make("ERM", net=net()), make(name, net=net(), eps=0.0, norm=norm)
    for algorithm in (erm, adversarial):
        torch.manual_seed(5)
        advance(algorithm, batches(3))
    for name_a, value in erm.network.state_dict().items():
        assert torch.equal(value, adversarial.network.state_dict()[name_a]), name_a
    assert adversarial.network.features[1].num_batches_tracked == 3
    assert adversarial.network.features[4].training and adversarial.network.features[1].track_running_stats


def test_dat_with_one_domain_is_uat() -> None:
    dat, uat = make("DAT", domains=1), make("UAT", domains=1)
    advance(dat, batches(4, domains=1)), advance(uat, batches(4, domains=1))
    assert torch.equal(weights(dat), weights(uat)) and torch.equal(dat.delta, uat.delta)


def test_dat_with_several_domains_is_not_uat() -> None:
    dat, uat = make("DAT", start="zero"), make("UAT", start="zero")
    advance(dat, batches(4)), advance(uat, batches(4))
    assert dat.delta.shape[0] == 3 and uat.delta.shape[0] == 1
    assert not torch.allclose(weights(dat), weights(uat))


def test_perturbed_images_stay_legal() -> None:
    algorithm = make("DAT", eps=50.0, alpha=10.0)
    x, y = batches(1)[0]
    advance(algorithm, [(x, y)])
    seen = algorithm.perturb(x, algorithm.delta)
    assert seen.min() == 0 and seen.max() == 1
    free = make("DAT", clip_low=-1e9, clip_high=1e9, eps=50.0)
    assert free.perturb(x, free.delta).abs().max() > 1


def test_ascent_raises_the_loss_and_the_cap_stops_it() -> None:
    x, y = batches(1)[0]
    algorithm = make("DAT", start="zero", eps=2.0, alpha=2.0)
    before, after = (
        algorithm.risks(x, y),
        algorithm.risks(algorithm.perturb(x, algorithm.ascend(x, y, algorithm.delta, 1)), y),
    )
    assert (after > before).all()
    capped = make("DAT", start="zero", eps=2.0, alpha=2.0, loss_cap=0.0)
    assert capped.ascend(x, y, capped.delta, 1).abs().max() == 0, "all losses lie above the cap: no gradient, no move"
