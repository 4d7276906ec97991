"""Schedules, clipping, early stopping, probe starts and frozen features: each against what it says, and continued."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Algorithm
from domainwise.data.catalogue import DATASETS
from domainwise.data.environments import Environments
from domainwise.engine import best
from domainwise.engine.optimisation import LearningRates, clip_gradients
from domainwise.engine.probe_start import fit_classifier
from domainwise.engine.session import Session
from domainwise.engine.train import Interrupted
from domainwise.nets.network import Network, network
from domainwise.protocol import averages
from domainwise.protocol.recipe import rate_factor
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.saved_weights import saved_weights
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.reading import read_curves
from domainwise.sweeps.tables import table
from references import Adam, agree, erm
from short_trainings import at_step, few, interrupt, plan, saved_results, trained
from small_problems import CLASSES, advance, batches, features, make, weights

CPU = torch.device("cpu")
EVERY = sorted(ALGORITHMS)
STATIONARY = [name for name in EVERY if not ALGORITHMS[name].moves_features]
"""The methods that work with frozen features."""


def scheduled(algorithm: Algorithm, schedule: str = "warmup-cosine", steps: int = 60) -> LearningRates:
    return LearningRates(algorithm, SimpleNamespace(lr_schedule=schedule, steps=steps))  # type: ignore[arg-type]


def rates(algorithm: Algorithm) -> list[float]:
    return [float(group["lr"]) for one in algorithm.optimizers.values() for group in one.param_groups]


# learning rates


@pytest.mark.parametrize("schedule", ["cosine", "warmup-cosine"])
def test_a_scheduled_step_is_adams_with_that_learning_rate(schedule: str) -> None:
    algorithm, twin = make("ERM", lr=0.01), make("ERM", lr=0.01)
    learning_rates, optimiser = scheduled(algorithm, schedule, steps=40), Adam(twin.network.parameters(), 0.01)
    for number, (x, y) in enumerate(batches(4), start=1):
        learning_rates.set(number)
        advance(algorithm, [(x, y)], first=number)
        if schedule == "cosine":
            optimiser.lr = 0.01 * (1 + math.cos(math.pi * number / 40)) / 2
        else:  # two steps of warm-up
            optimiser.lr = 0.01 if number == 1 else 0.01 * (1 + math.cos(math.pi * (number - 2) / 38)) / 2
        optimiser.step(erm(twin.network, x, y))
    agree((weights(algorithm), weights(twin)))


def test_a_constant_schedule_touches_nothing() -> None:
    algorithm = make("ERM", lr=0.01)
    group = algorithm.optimizers["network"].param_groups[0]
    scheduled(algorithm, "constant").set(3)
    assert group["lr"] == 0.01 and isinstance(group["lr"], float)


def test_mldgs_inner_step_has_the_scheduled_learning_rate() -> None:
    """Which is that of a run whose learning rate is as low from the start, as long as Adam divides it out."""
    slow, low = make("MLDG", lr=0.02), make("MLDG", lr=0.01)
    learning_rates = scheduled(slow, "cosine", steps=2)
    learning_rates.set(1)
    advance(slow, batches(1)), advance(low, batches(1))
    agree((weights(slow), weights(low)))


def test_on_a_gpu_learning_rates_are_filled_in_place() -> None:
    """So that captured steps see them; a loaded state does not put others there."""
    algorithm = make("DANN", lr=0.01, dtype=torch.float32)
    learning_rates = scheduled(algorithm)
    learning_rates.on_gpu = True
    learning_rates.set(0)
    groups = [group for one in algorithm.optimizers.values() for group in one.param_groups]
    first = [group["lr"] for group in groups]
    assert all(isinstance(rate, Tensor) for rate in first)
    advance(algorithm, batches(2, dtype=torch.float32))
    for optimizer in algorithm.optimizers.values():
        optimizer.load_state_dict(optimizer.state_dict())
    learning_rates.set(1)
    now = [group["lr"] for one in algorithm.optimizers.values() for group in one.param_groups]
    assert all(a is b for a, b in zip(first, now, strict=True))
    full = [algorithm.hparams["lr"], algorithm.hparams["lr_d"]]
    assert rates(algorithm) == pytest.approx([2 / 3 * rate for rate in full])


def test_an_interrupted_schedule_continues_bit_by_bit(tmp_path: Path) -> None:
    """In the middle of the warm-up too, which is two steps long."""
    run = replace(plan("DANN", steps=40, evaluate_every=20), lr_schedule="warmup-cosine", clip_gradient=0.5)
    trained(run, tmp_path / "whole")
    for step in (0, 1, 20):
        with pytest.raises(Interrupted):
            trained(run, tmp_path / "parts", progress=at_step(step, interrupt))
    trained(run, tmp_path / "parts")
    assert saved_results(run, tmp_path / "parts") == saved_results(run, tmp_path / "whole")


# clipped gradients


def test_gradients_are_clipped_as_torch_clips_them() -> None:
    algorithm, twin = make("ERM", lr=0.01), make("ERM", lr=0.01)
    clip_gradients(algorithm, 0.2)
    optimizer = torch.optim.Adam(twin.network.parameters(), 0.01)
    for x, y in batches(4):
        advance(algorithm, [(x, y)])
        optimizer.zero_grad()
        erm(twin.network, x, y).backward()
        before = torch.nn.utils.clip_grad_norm_(list(twin.network.parameters()), 0.2)
        assert before > 0.2, "there was something to clip"
        optimizer.step()
    agree((weights(algorithm), weights(twin)))


def test_small_gradients_stay_as_they_are() -> None:
    algorithm, plain = make("ERM"), make("ERM")
    clip_gradients(algorithm, 1e6)
    advance(algorithm, batches(3)), advance(plain, batches(3))
    assert torch.equal(weights(algorithm), weights(plain))


@pytest.mark.parametrize("name", EVERY)
def test_every_method_follows_a_schedule_and_clips(name: str) -> None:
    short = {key: value for key, value in {"head_steps": 1, "d_steps": 1}.items() if key in ALGORITHMS[name].space}
    algorithm = make(name, **short)
    learning_rates, full, norms = scheduled(algorithm), rates(algorithm), []
    clip_gradients(algorithm, 1e-3)
    for optimizer in algorithm.optimizers.values():
        optimizer.register_step_pre_hook(lambda one, *_: norms.append(gradient_norm(one)))
    for number, batch in enumerate(batches(3)):
        learning_rates.set(number)
        assert rates(algorithm) == pytest.approx([rate * (number + 1) / 3 for rate in full])
        advance(algorithm, [batch], first=number)
    assert len(norms) >= 3 and 0.5e-3 < max(norms) < 1.001e-3
    assert torch.isfinite(weights(algorithm)).all() and not torch.equal(weights(algorithm), weights(make(name)))


def gradient_norm(optimizer: torch.optim.Optimizer) -> float:
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return math.sqrt(sum(float(gradient.pow(2).sum()) for gradient in gradients))


# early stopping


def with_scores(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    """Validation follows this curve."""
    told = iter(scores)
    monkeypatch.setattr(best, "training_domain_score", lambda *_: next(told))


@pytest.mark.parametrize(
    ("scores", "last"),
    [
        ([0.5, 0.6, 0.6, 0.55, 0.7], 3),  # a tie is no improvement
        ([0.5, 0.4, 0.6, 0.5, 0.7, 0.1, 0.2], 6),
        ([0.5, 0.4, 0.3], 2),
    ],
)
def test_it_stops_after_two_evaluations_that_are_no_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: list[float], last: int
) -> None:
    with_scores(monkeypatch, scores)
    run = replace(plan("ERM", steps=30, evaluate_every=1), early_stop=2)
    outcome = trained(run, tmp_path, save="last")
    reason = "stopped early: 2 evaluations without a better validation"
    assert (outcome.status.status, outcome.status.step, outcome.status.reason) == ("done", last, reason)
    assert {record.step for record in outcome.records} == set(range(last + 1))
    assert f"done after step {last} ({reason})" in str(outcome.as_table().caption)
    weights = saved_weights(RunFolder(tmp_path, run), "last")
    assert (weights.step, weights.selected) == (last, False) and str(weights) == f"weights of the last step, {last}"


def test_a_run_that_stopped_early_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tables, for the oracle's last evaluation, for its curve, and for the same call again."""
    with_scores(monkeypatch, [0.5, 0.4, 0.3])
    run = replace(plan("ERM", steps=30, evaluate_every=1), early_stop=2)
    outcome = trained(run, tmp_path)
    again = trained(run, tmp_path, progress=lambda _: pytest.fail("it trains again"))
    assert again.status == outcome.status
    (curve,) = read_curves(RunFolder(tmp_path, run))
    assert curve.steps == (0, 1, 2)
    (oracle,) = table(tmp_path, selection="oracle")
    (row,) = oracle.rows
    assert row.average is not None and row.average.mean == pytest.approx(100 * curve.accuracy["scene1", "in"][-1])
    assert "early_stop 2" in oracle.caption


def test_stopping_at_the_last_step_is_no_early_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_scores(monkeypatch, [0.5, 0.4, 0.3])
    outcome = trained(replace(plan("ERM", steps=3, evaluate_every=1), early_stop=2), tmp_path)
    assert (outcome.status.step, outcome.status.reason) == (2, "")


def test_an_interrupted_run_stops_early_where_the_whole_one_does(tmp_path: Path) -> None:
    run = replace(plan("ERM", steps=60, evaluate_every=1, lr=0.0), early_stop=5)
    assert trained(run, tmp_path / "whole").status.step == 5, "nothing is learned, so validation is never better"
    for step in (1, 3):
        with pytest.raises(Interrupted):
            trained(run, tmp_path / "parts", progress=at_step(step, interrupt))
    trained(run, tmp_path / "parts")
    assert saved_results(run, tmp_path / "parts") == saved_results(run, tmp_path / "whole")


def test_an_average_that_improves_is_an_improvement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation of the last weights and of the averaged ones, in turns: the last weights are best at first."""
    with_scores(monkeypatch, [0.9, 0.1, 0.8, 0.2, 0.8, 0.2, 0.8, 0.2, 0.8, 0.3])
    run = replace(plan("ERM", steps=30, evaluate_every=1), early_stop=2, average="sma")
    assert trained(run, tmp_path).status.step == 3, "the average was better after step 1, and never again"


def test_erm_plus_plus_averages_after_its_first_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its second step with all weights on, if an average usually begins with its second step."""
    monkeypatch.setattr(averages, "SMA_START", 1)
    one = session(plan("ERMPlusPlus", head_steps=2))
    assert one.run.average == "sma" and one.average is not None
    seen = []
    for _ in range(6):
        one.step()
        seen.append(one.average._current().double())
    assert torch.equal(seen[0][: 16 * 27], seen[1][: 16 * 27]), "the classifier alone"
    expected = torch.stack(seen[3:]).mean(0)
    assert torch.allclose(one.average.mean.double(), expected, atol=1e-7) and not torch.equal(seen[-1], expected)
    assert (one.average.steps(5, True).first, one.average.steps(1, True).first) == (3, 1)


# starts


def session(run: Run) -> Session:
    with torch.random.fork_rng():
        return Session(run, few(), CPU)


def training_rows(run: Run) -> list[Tensor]:
    return [few().split(domain, run.trial, run.held_out)["in"] for domain in run.train_domains]


def test_a_probed_classifier_is_the_best_linear_one_and_the_features_are_untouched() -> None:
    run = plan("DANN")
    plain, probed = session(run).algorithm, session(replace(run, start="probe")).algorithm
    for name, value in plain.state_dict().items():
        assert torch.equal(value, probed.state_dict()[name]) == (not name.startswith("network.classifier")), name
    body, head = probed.network.features.eval().double(), probed.network.classifier.double()
    parts = [(body(few().images[rows].double() / 255), few().labels[rows]) for rows in training_rows(run)]
    z = torch.cat([z for z, _ in parts]).detach()
    std = z.std(0, unbiased=False)
    std = std.maximum(0.1 * std.pow(2).mean().sqrt())
    scaled = (head.weight.detach() * std).requires_grad_()  # the classifier of standardised features
    shift = (head.bias.detach() + head.weight.detach() @ z.mean(0)).requires_grad_()
    loss = 0.01 / 2 * scaled.pow(2).sum()
    for part, y in parts:
        logits = (part.detach() - z.mean(0)) / std @ scaled.T + shift
        loss = loss + sum(logits[i].exp().sum().log() - logits[i, y[i]] for i in range(len(y))) / len(y) / len(parts)
    gradients = torch.autograd.grad(loss, [scaled, shift])
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-5


def test_a_probe_on_random_features_holds_on_an_unseen_domain() -> None:
    """There some features hardly vary on the training images, and are far from their mean on others."""
    run = replace(plan_run("BackgroundDigits", "ERM", [0]), start="probe")
    data = DATASETS[run.dataset].load()
    probed = Session(run, data, CPU)
    rows = data.rows("scene1")
    with torch.no_grad():
        answers = probed.algorithm.eval().predict(probed.environments.normalise(data.images[rows])).argmax(1)
    assert float((answers == data.labels[rows]).double().mean()) > 0.4, "chance is 0.1"


def test_a_probe_of_features_that_do_not_vary_knows_the_classes_shares() -> None:
    data = Environments.from_arrays({"a": (np.ones((4, 3), np.float32), np.array([0, 0, 0, 1]))})
    net = Network(nn.Identity(), 2, feature_size=3)
    fit_classifier(net, data, [torch.arange(4)])
    assert torch.equal(net.classifier.weight, torch.zeros(2, 3))
    torch.testing.assert_close(net.classifier.bias.softmax(0), torch.tensor([0.75, 0.25]), rtol=1e-4, atol=0)


def test_a_probed_run_starts_better_and_continues_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(plan("EnsembleUAT", steps=6), start="probe")
    outcome = trained(run, tmp_path / "whole")
    plain = trained(plan("EnsembleUAT", steps=6), tmp_path / "plain")
    assert outcome.records[0].training_loss < 0.5 * plain.records[0].training_loss
    with pytest.raises(Interrupted):
        trained(run, tmp_path / "parts", progress=at_step(2, interrupt))
    monkeypatch.setattr("domainwise.engine.session.fit_classifier", lambda *_, **__: pytest.fail("fitted again"))
    trained(run, tmp_path / "parts")
    assert saved_results(run, tmp_path / "parts") == saved_results(run, tmp_path / "whole")


@pytest.mark.usefixtures("nothing_stays_registered")
def test_frozen_features_are_the_same_to_the_last_bit(tmp_path: Path) -> None:
    """Weights with decay, and statistics of a BatchNorm that would learn; the classifier learns."""

    @network("with-norm")
    class WithNorm(nn.Sequential):
        out_features = 4

        def __init__(self, shape: tuple[int, ...]) -> None:
            super().__init__(nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    options: dict[str, Any] = {"network": "with-norm", "steps": 4, "evaluate_every": 2}
    run = plan_run("BackgroundDigits", "DAT", [0], freeze="features", hparams={"batch_size": 4}, **options)
    before = {name: value.clone() for name, value in session(run).algorithm.state_dict().items()}
    outcome = trained(run, tmp_path, save="last")
    assert outcome.algorithm is not None
    after = outcome.algorithm.state_dict()
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert moved == {"network.classifier.weight", "network.classifier.bias", "delta"}


@pytest.mark.parametrize("name", STATIONARY)
def test_methods_work_on_frozen_features(name: str) -> None:
    net = Network(features(), CLASSES)
    net.freeze_features()
    algorithm = make(name, net=net)
    before = {key: value.clone() for key, value in algorithm.network.state_dict().items()}
    advance(algorithm, batches(2))
    moved = {key for key, value in algorithm.network.state_dict().items() if not torch.equal(value, before[key])}
    assert moved and all("classifier" in key for key in moved)


def test_frozen_features_need_no_gradients() -> None:
    algorithm = session(replace(plan("ERM"), freeze="features")).algorithm
    assert not algorithm.network.features.training and algorithm.network.classifier.training
    x = few().images[:6].view(3, 2, *few().shape) / 255
    assert not algorithm.represent(x).requires_grad and algorithm.logits(x).requires_grad
    assert [p.shape for p in algorithm.optimizers["network"].param_groups[0]["params"]] == [(10, 512), (10,)]


def test_rates_of_a_session_are_those_of_its_run() -> None:
    one = session(replace(plan("ERM", steps=40), lr_schedule="cosine"))
    for step in range(3):
        one.step()
        assert rates(one.algorithm) == [pytest.approx(1e-3 * rate_factor("cosine", step, 40))]
