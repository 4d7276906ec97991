"""Averaged weights: what they are, that the training does not notice them, and that a resume changes nothing."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import short_trainings
from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Algorithm
from domainwise.core.errors import UserError
from domainwise.engine.averaging import WeightAverage
from domainwise.engine.batch_norm import BATCHES, estimated_statistics, learning_norms
from domainwise.engine.due_evaluations import DueEvaluations
from domainwise.engine.evaluation import evaluate, splits_to_evaluate
from domainwise.engine.execution.ranks import Ranks
from domainwise.engine.restore import restore
from domainwise.engine.session import Session
from domainwise.engine.swad import SwadAverage, validation_interval
from domainwise.engine.train import Interrupted
from domainwise.nets import NETWORKS
from domainwise.nets.network import Network, network
from domainwise.protocol import averages
from domainwise.protocol.averages import AVERAGES
from domainwise.protocol.records import Record
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.saved_weights import saved_weights
from domainwise.protocol.selection import training_domain_score
from domainwise.sweeps.events import Settings
from domainwise.sweeps.interleaving import InterleavedRuns
from domainwise.sweeps.plan_run import plan_run
from short_trainings import at_step, few, interrupt, saved_results, trained
from small_problems import CLASSES, advance, batches, features, make

CPU = torch.device("cpu")
EARLY = 3
"""The step from which SMA averages in these tests."""
LIVE = "tiny-live"
"""A small network with a BatchNorm that learns."""


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averages, "SMA_START", EARLY)


@pytest.fixture(scope="module", autouse=True)
def tiny_plan() -> Iterator[None]:
    @network(LIVE)
    def made(shape: tuple[int, ...]) -> nn.Module:
        layers = (nn.Conv2d(shape[0], 4, 5, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        net = nn.Sequential(*layers, nn.Flatten())
        net.out_features = 16  # type: ignore[assignment]
        return net

    yield
    del NETWORKS._things[LIVE], NETWORKS._options[LIVE]


def plan(algorithm: str = "DAT", **options: Any) -> Run:
    return replace(short_trainings.plan(algorithm, **options), network=LIVE)


def weights_of_steps(run: Run) -> Iterator[tuple[Session, dict[str, Tensor]]]:
    """The training, and the parameters after every step in float64."""
    session = Session(run, few(), CPU)
    for _ in range(run.steps):
        session.step()
        yield session, {name: value.detach().double() for name, value in session.algorithm.named_parameters()}


def mean(weights: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in weights]).mean(0) for name in weights[0]}


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return all(torch.allclose(found[name].double(), value, rtol=0, atol=2e-7) for name, value in expected.items())


def test_sma_is_the_mean_of_all_weights_from_its_start_on() -> None:
    seen: list[dict[str, Tensor]] = []
    for session, weights in weights_of_steps(plan("ERM", average="sma", lr=0.01)):
        seen.append(weights)
        assert session.average is not None
        step = len(seen) - 1
        expected = mean(seen[EARLY:]) if step >= EARLY else weights
        assert close(session.average.state_dict(), expected), step
        if step <= EARLY:
            assert all(torch.equal(session.average.state_dict()[name].double(), weights[name]) for name in weights)
    assert not close(session.average.state_dict(), weights), "the last weights are others"


def test_ema_is_the_recursion() -> None:
    run = plan("ERM", average="ema", lr=0.01)
    initial = Session(run, few(), CPU).algorithm.named_parameters()
    expected = {name: value.detach().double().clone() for name, value in initial}
    for step, (session, weights) in enumerate(weights_of_steps(run)):
        decay = min(0.999, (1 + step) / (10 + step))
        expected = {name: decay * value + (1 - decay) * weights[name] for name, value in expected.items()}
        assert session.average is not None and close(session.average.state_dict(), expected)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_can_be_averaged(name: str) -> None:
    """Of all parameters the mean of two steps; the algorithm, its buffers included, does not notice."""
    run = plan(average="sma")
    at_once = {"head_steps": 0} if name == "ERMPlusPlus" else {}
    plain, algorithm, data = make(name, **at_once), make(name, **at_once), batches(EARLY + 2)
    average = WeightAverage(run, algorithm, lambda: (x for x, _ in batches(3)))
    seen: list[list[Tensor]] = []
    for number, batch in enumerate(data):
        average.schedule(number)
        advance(algorithm, [batch], first=number), advance(plain, [batch], first=number)
        average.update()
        average.state_dict()
        seen.append([parameter.detach().clone() for parameter in algorithm.parameters()])
    for key, value in plain.state_dict().items():
        assert torch.equal(value, algorithm.state_dict()[key]), key
    with average.applied():
        for parameter, *values in zip(algorithm.parameters(), *seen[EARLY:], strict=True):
            assert torch.allclose(parameter, sum(values) / 2, rtol=0, atol=1e-12)
        assert torch.isfinite(algorithm.predict(data[0][0][0])).all()
    for key, value in plain.state_dict().items():
        assert torch.equal(value, algorithm.state_dict()[key]), f"{key} is the algorithm's own again"


def without_average(records: list[Record]) -> list[Record]:
    return [replace(record, run="", seconds=0.0) for record in records if record.average is None]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A training without average."""
    folder = RunFolder(tmp_path_factory.mktemp("plain"), plan(dropout=0.3))
    trained(folder.run, folder.path.parent)
    return folder


@pytest.mark.parametrize("average", AVERAGES)
def test_a_training_does_not_notice_its_average(plain: RunFolder, tmp_path: Path, average: str) -> None:
    run = plan(dropout=0.3, average=average)
    outcome = trained(run, tmp_path)
    folder = RunFolder(tmp_path, run)
    assert without_average(outcome.records) == without_average(plain.read()[0])
    assert folder.model_file.read_bytes() == plain.model_file.read_bytes()
    assert folder.best_file.read_bytes() == plain.best_file.read_bytes()
    averaged = [record for record in outcome.records if record.average]
    assert {record.average for record in averaged} == {average}
    steps = sorted({record.step for record in averaged})
    assert steps == ([7] if average == "swad" else [0, 3, 6, 7])
    assert all(record.training_loss is None for record in averaged)


@pytest.mark.parametrize("average", AVERAGES)
def test_the_averaged_weights_of_the_selected_step_are_saved(tmp_path: Path, average: str) -> None:
    run = plan("ERM", average=average, steps=20, lr=0.003, batch_size=16)
    outcome = trained(run, tmp_path)
    saved = saved_weights(RunFolder(tmp_path, run))
    assert saved.average == average and saved.step == outcome.selected_average and saved.selected
    model = restore(outcome.folder, environments=few())
    assert str(model.method) == f"ERM + {average.upper()}" and model.weights == str(saved)
    scores = evaluate(model.algorithm, few(), splits_to_evaluate(run, few()), run.train_domains)
    for record in outcome.evaluation(saved.step, average):
        assert scores[record.domain, record.split][:2] == pytest.approx((record.accuracy, record.loss), rel=1e-5)
    by_step = {
        step: training_domain_score(run, {(r.domain, r.split): r.accuracy for r in outcome.evaluation(step, average)})
        for step in {record.step for record in outcome.records if record.average}
    }
    assert by_step[saved.step] == max(score for score in by_step.values() if score is not None)
    assert outcome.algorithm is not None
    assert all(torch.equal(value, saved.tensors[name]) for name, value in outcome.algorithm.state_dict().items())
    assert saved_weights(RunFolder(tmp_path, run), "best").average == ""
    assert f"{average.upper()}: step {saved.step}" in outcome.as_table().headings


def test_without_held_out_samples_the_averaged_weights_are_those_of_the_last_step(tmp_path: Path) -> None:
    run = plan_run(
        "BackgroundDigits", "ERM", [], hparams={"batch_size": 4}, steps=6, evaluate_every=2, held_out=0, average="sma"
    )
    trained(run, tmp_path)
    saved = saved_weights(RunFolder(tmp_path, run))
    assert str(saved) == "weights averaged over steps 3 to 5 (SMA), up to the last step"
    seen = [weights for _, weights in weights_of_steps(run)]
    assert close(saved.tensors, mean(seen[EARLY:]))


def test_averaged_weights_of_a_run_without_average_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the run has no averaged weights: give it an average"):
        trained(plan("ERM"), tmp_path, save="averaged")
    assert not list(tmp_path.iterdir()), "which is said before anything is done"


@pytest.mark.parametrize("at", [0, 4, 6])
@pytest.mark.parametrize("average", AVERAGES)
def test_a_resumed_training_has_the_same_average(tmp_path: Path, average: str, at: int) -> None:
    run = plan(average=average, evaluate_every=4, lr=0.01)
    for folder, step in (("whole", -1), ("parts", at)):
        if step >= 0:
            with pytest.raises(Interrupted):
                trained(run, tmp_path / folder, progress=at_step(step, interrupt))
        trained(run, tmp_path / folder)
    whole, parts = (saved_results(run, tmp_path / folder) for folder in ("whole", "parts"))
    assert whole == parts
    files = [RunFolder(tmp_path / folder, run).averaged_file.read_bytes() for folder in ("whole", "parts")]
    assert files[0] == files[1]


def test_interleaved_runs_have_the_averages_of_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InterleavedRuns, "_data", lambda *_: few())
    runs = [plan("DAT", average="sma"), plan("ERM", average="ema"), plan(average="swad")]
    together = InterleavedRuns(Settings(tmp_path / "together", device="cpu"))
    for run in runs:
        together.add(run)
    while together.trainings:
        list(together.step_all())
    for run in runs:
        trained(run, tmp_path / "alone")
        folders = [RunFolder(tmp_path / where, run) for where in ("together", "alone")]
        assert folders[0].averaged_file.read_bytes() == folders[1].averaged_file.read_bytes()
        assert saved_results(run, tmp_path / "together") == saved_results(run, tmp_path / "alone")


SWAD_CURVES = {
    "falls to the end": ([9 - i for i in range(8)], (0, 7)),
    "starts, and never ends": ([5, 4, 2, 3, 3, 2, 2, 2], (2, 7)),
    "above the limit at the end": ([5, 4, 2, 2, 2, 2, 9, 9], (2, 7)),
    "ends": ([5, 2, 2, 2, 2, 9, 9, 9, 9, 9, 9, 1, 1, 0, 0, 0], (1, 4)),
    "leaves the valley, returns, and ends": ([5, 2, 2, 2, 9, 9, 9, 2, *[9] * 6, 0, 0], (1, 7)),
    "ends with its start": ([1, *[9] * 7], (0, 0)),
}


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", SWAD_CURVES)
def test_swad_is_the_mean_of_every_step_in_the_valley(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, every: int
) -> None:
    """Against a straight-line version that keeps every step's weights; a segment is `every` steps, the first is one."""
    losses, (first, last) = SWAD_CURVES[name]
    validated = [every * i for i in range(len(losses))]
    observe = SwadAverage.observe
    kept = 0

    def handmade(average: SwadAverage, step: int, loss: float) -> None:
        nonlocal kept
        assert loss > 0
        observe(average, step, losses[validated.index(step)])
        kept = max(kept, len(list(average.tensors())))

    monkeypatch.setattr(SwadAverage, "observe", handmade)
    run = plan("ERM", average="swad", steps=validated[-1] + 1, evaluate_every=6 * every, lr=0.01)
    assert validation_interval(run) == every
    trained(run, tmp_path)
    saved = saved_weights(RunFolder(tmp_path, run))
    begin, end = validated[first - 1] + 1 if first else 0, validated[last]
    assert saved.averaged is not None and (saved.averaged.first, saved.averaged.last) == (begin, end)
    seen = [weights for _, weights in weights_of_steps(run)]
    assert close(saved.tensors, mean(seen[begin : end + 1]))
    assert kept <= 4, "copies of the weights, the open segment included"


def test_swad_observes_the_mean_validation_loss_of_the_training_domains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed: dict[int, float] = {}
    observe = SwadAverage.observe

    def watched(average: SwadAverage, step: int, loss: float) -> None:
        observed[step] = loss
        observe(average, step, loss)

    monkeypatch.setattr(SwadAverage, "observe", watched)
    run = plan("ERM", average="swad", steps=15, evaluate_every=12)
    outcome = trained(run, tmp_path)
    assert sorted(observed) == [0, 2, 4, 6, 8, 10, 12, 14]
    for step in (0, 12, 14):
        losses = [record.loss for record in outcome.evaluation(step) if record.domain in run.train_domains]
        assert observed[step] == pytest.approx(sum(losses) / 3, rel=1e-12)
    session = Session(run, few(), CPU)
    for _ in range(5):
        session.step()
    parts = splits_to_evaluate(run, session.environments)
    found = evaluate(session.algorithm, session.environments, parts, run.train_domains)
    assert observed[4] == pytest.approx(sum(found[domain, "out"][1] for domain in run.train_domains) / 3, rel=1e-12)


def test_an_averaged_loss_that_is_not_finite_ends_the_run_as_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WeightAverage, "value", lambda average: average.mean * float("nan"))
    outcome = trained(plan("ERM", average="ema"), tmp_path)
    assert (outcome.status.status, outcome.status.step) == ("diverged", 0)
    assert not RunFolder(tmp_path, outcome.run).averaged_file.exists()


def with_norm(dropout: float = 0.0) -> Algorithm:
    net = nn.Sequential(
        features(), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 4), nn.BatchNorm1d(4)
    )
    return make("ERM", net=Network(net, CLASSES, feature_size=4, dropout=dropout))


def test_statistics_are_the_mean_over_batches_of_the_layers_inputs() -> None:
    algorithm, data = with_norm(dropout=0.5), [x for x, _ in batches(4)]
    advance(algorithm, batches(3))
    before = {name: value.clone() for name, value in algorithm.state_dict().items()}
    random = torch.get_rng_state()
    body = algorithm.network.features
    with torch.no_grad():
        inputs = [body[0](x.flatten(0, 1)) for x in data]
        first = [nn.functional.batch_norm(z, None, None, body[1].weight, body[1].bias, training=True) for z in inputs]
        second = [body[4](torch.tanh(z)) for z in first]
    with estimated_statistics(algorithm, data):
        for norm, values in ((body[1], inputs), (body[5], second)):
            assert torch.allclose(norm.running_mean, torch.stack([z.mean(0) for z in values]).mean(0), atol=1e-12)
            assert torch.allclose(norm.running_var, torch.stack([z.var(0) for z in values]).mean(0), atol=1e-12)
        assert body[1].momentum == 0.1 and algorithm.training and all(m.training for m in algorithm.modules())
    for name, value in algorithm.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(random, torch.get_rng_state()), "no random numbers are drawn"


def test_frozen_norms_need_nothing_and_unused_ones_keep_their_statistics() -> None:
    assert learning_norms(make("ERM")) == []
    algorithm = with_norm()
    algorithm.unused = nn.BatchNorm1d(3, dtype=torch.float64)
    algorithm.unused.running_mean.fill_(7)
    with estimated_statistics(algorithm, [x for x, _ in batches(2)]):
        assert (algorithm.unused.running_mean == 7).all()

    def none() -> Iterator[Tensor]:
        raise AssertionError("no batch is drawn")
        yield

    with estimated_statistics(make("ERM"), none()):
        pass


def test_batches_for_statistics_are_the_same_every_time_and_not_those_of_the_training() -> None:
    session = Session(plan(average="sma"), few(), CPU)
    assert session.average is not None
    first, second = list(session.average.batches()), list(session.average.batches())
    assert len(first) == BATCHES and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert first[0].shape == (3, 4, *few().shape) and not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], session.batches.draw()[0])


def test_a_checkpoint_of_a_training_with_another_average_does_not_fit() -> None:
    sma, swad = (Session(plan("ERM", average=name), few(), CPU) for name in ("sma", "swad"))
    with pytest.raises(KeyError):
        swad.load_state(sma.state())


def test_after_its_end_swad_validates_no_more() -> None:
    run = plan("ERM", average="swad", steps=60, evaluate_every=6)
    session = Session(run, few(), CPU)
    evaluations = DueEvaluations(session, Ranks(CPU))
    assert isinstance(session.average, SwadAverage)
    session.average.valley.ended = True
    session.step()
    evaluations.launch(1)
    assert evaluations.results(1) is None and not session.average.valley.losses


def test_swad_can_be_asked_at_any_time() -> None:
    """As if the training ended there: every step so far, while no start is found."""
    seen: list[dict[str, Tensor]] = []
    for session, weights in weights_of_steps(plan("ERM", average="swad", steps=5, lr=0.01)):
        seen.append(weights)
        assert session.average is not None and close(session.average.state_dict(), mean(seen))
        if len(seen) in (1, 3):
            session.average.observe(len(seen) - 1, 9 - len(seen))
    assert session.average.steps(4, selected=False) == averages.AveragedSteps("swad", 0, 4, 4, False)
