"""On a GPU: captured is eager, together is alone, and what does not fit leaves no trace. `pytest -m gpu`."""

import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from domainwise.algorithms import ALGORITHMS
from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.data.environments import Environments
from domainwise.engine.evaluation import Evaluator, splits_to_evaluate
from domainwise.engine.execution import Execution, Mode
from domainwise.engine.execution.isolation import RunContext
from domainwise.engine.session import Session
from domainwise.engine.train import OutOfMemory, train
from domainwise.protocol.averages import AVERAGES
from domainwise.protocol.records import Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.sweeps.events import Settings
from domainwise.sweeps.interleaving import InterleavedRuns
from domainwise.sweeps.plan_run import plan_run
from hub_models import FAMILIES, SIZE

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
GPU = torch.device("cuda")
EVERY = sorted(ALGORITHMS)
CAPTURED = set(EVERY)
"""The algorithms whose steps are captured: all."""
TWO_PHASES = {"DANN", "CDANN", "ADRMX", "EQRM", "RDM", "TRM", "ERMPlusPlus"}
SHORT = {"anneal": 20, "ib_anneal": 30, "head_steps": 20, "min_steps": 20, "phases": 2, "memory": 64}
"""So that what is scheduled happens within fifty steps."""


def plan(algorithm: str, precision: str = "fp32", steps: int = 50, network: str | None = None, **changes: Any) -> Run:
    space = ALGORITHMS[algorithm].space
    hparams = {"batch_size": 16, "dropout": 0.2, "lr": 1e-4} | {k: v for k, v in SHORT.items() if k in space}
    hparams |= changes.pop("hparams", {})
    run = plan_run(
        "ColoredMNIST-embedded", algorithm, [2], network=network, hparams=hparams, precision=precision, steps=steps
    )
    return replace(run, evaluate_every=25, **changes)


@cache
def data() -> Environments:
    return DATASETS["ColoredMNIST-embedded"].load().to(GPU)


class Trained(NamedTuple):
    """A session after some steps, all it has learned, and its state."""

    session: Session
    learned: dict[str, Tensor]
    state: dict[str, Any]


def trained(
    run: Run,
    mode: Mode,
    steps: int = 50,
    state: dict[str, Any] | None = None,
    nudge: float = 0.0,
    images: Environments | None = None,
) -> Trained:
    """Some steps in this mode, from a state if there is one; or from weights that are changed by a relative nudge."""
    with RunContext(GPU, run.precision):
        session = Session(run, images or data(), GPU, execution=Execution(mode))
        with torch.no_grad():
            for weights in session.algorithm.parameters():
                weights *= 1 + nudge * torch.randn(weights.shape, generator=torch.Generator().manual_seed(0)).to(GPU)
        if state is not None:
            session.load_state(state)
        for _ in range(steps):
            session.step()
        learned = session.algorithm.state_dict() | {"loss": session.loss_sum}
        return Trained(session, {name: value.double().cpu() for name, value in learned.items()}, session.state())


def gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest relative difference of any tensor."""
    return max(float((a[name] - b[name]).norm() / b[name].norm().clamp_min(1e-6)) for name in b)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name.startswith("domainwise")]


@pytest.mark.parametrize("name", EVERY)
def test_captured_equals_eager(name: str) -> None:
    session, captured, _ = trained(plan(name), "captured")
    assert session.captured is not None
    assert name in CAPTURED and all(graph is not None for graph in session.captured.graphs.values())
    assert len(session.captured.graphs) == (2 if name in TWO_PHASES else 1)
    assert gap(captured, trained(plan(name), "eager").learned) < 1e-4


@pytest.mark.parametrize("name", ["ERM", "MLDG", "DANN", "SAM", "ERMPlusPlus"])
def test_captured_schedules_and_clipping_equal_eager_ones(name: str) -> None:
    """One graph per phase, recorded once: it reads learning rates that change at every step."""
    run = plan(name, lr_schedule="warmup-cosine", clip_gradient=0.1)
    session, captured, _ = trained(run, "captured")
    assert session.captured is not None and all(graph is not None for graph in session.captured.graphs.values())
    assert gap(captured, trained(run, "eager").learned) < 1e-4
    assert gap(captured, trained(plan(name), "eager").learned) > 1e-3, "the schedule made a difference"


def test_a_scheduled_training_continues_where_it_was() -> None:
    run = plan("ERM", lr_schedule="cosine", clip_gradient=0.1)
    first = trained(run, "captured", steps=30)
    second = trained(run, "captured", steps=20, state=first.state)
    assert gap(second.learned, trained(run, "captured").learned) < 1e-5


def test_probed_starts_and_frozen_features_are_captured() -> None:
    run = plan("DAT", start="probe", freeze="features")
    session, captured, _ = trained(run, "captured")
    assert session.captured is not None and all(graph is not None for graph in session.captured.graphs.values())
    assert gap(captured, trained(run, "eager").learned) < 1e-4
    start = trained(plan("DAT"), "eager", steps=0).learned
    assert all(torch.equal(value, captured[key]) for key, value in start.items() if ".features." in key)


@pytest.mark.parametrize("name", ["ERM", "DAT", "IRM", "MLDG", "DANN", "EnsembleUAT", "SAM", "MIRO"])
def test_compiled_equals_eager(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Up to rounding, of which fifty steps of Adam make more: as much as of a nudge of the weights by 1e-7."""
    run = plan(name, network="small-cnn")
    compiled = trained(run, "compiled").learned
    assert not said(caplog), "it was compiled, and captured"
    eager = trained(run, "eager").learned
    assert gap(compiled, eager) < 3 * gap(trained(run, "eager", nudge=1e-7).learned, eager)
    assert gap(trained(run, "compiled", steps=1).learned, trained(run, "eager", steps=1).learned) < 0.01


@pytest.mark.parametrize("name", ["ERM", "DAT"])
def test_balanced_batches_are_captured(name: str) -> None:
    run = plan(name, balance="class", class_weights=((data().classes[0], 3.0),))
    session, captured, _ = trained(run, "captured")
    assert session.captured is not None and all(graph is not None for graph in session.captured.graphs.values())
    eager = trained(run, "eager").learned
    assert gap(captured, eager) < 1e-4
    assert gap(trained(plan(name), "eager").learned, eager) > 1e-3, "other images are drawn"
    _, y = session.batches.draw()
    assert float((y == 0).float().mean()) > 0.6, "three of the first class for one of the other"


def noise() -> Environments:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (3, 40, 3, SIZE, SIZE), generator=generator, dtype=torch.uint8)
    return Environments.from_arrays({f"domain {e}": (images[e], torch.arange(40) % 3) for e in range(3)}, name="noise")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_backbones_of_hubs_are_captured(
    family: str, precision: str, backbone: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """By the loss and the perturbations of three steps: some weights have gradients of rounding alone, as the biases of
    an attention's keys, and Adam's first steps follow their signs."""
    pytest.importorskip("transformers")
    images = noise()
    run = plan_run(
        Dataset.from_environments(images),
        "DAT",
        ["domain 0"],
        network=f"hf:{backbone(family)}",
        hparams={"batch_size": 8},
        precision=precision,
        steps=10,
    )
    there = images.to(GPU)
    limit = 1e-3 if precision == "fp32" else 0.1
    eager = trained(run, "eager", steps=3, images=there).learned
    for mode in ("captured", "compiled"):
        session, learned, _ = trained(run, mode, steps=3, images=there)
        assert session.captured is not None and all(graph is not None for graph in session.captured.graphs.values())
        assert gap(learned, {name: eager[name] for name in ("loss", "delta")}) < limit, mode
    assert not said(caplog), "compiled, and captured"


@pytest.mark.parametrize("name", ["ERM", "ADA"])
def test_streamed_steps_are_captured_and_those_of_resident_images(name: str) -> None:
    learned = []
    for streamed in (False, True):
        with RunContext(GPU, "fp32"):
            there = DATASETS["ColoredMNIST-embedded"].load().to(GPU, streamed=streamed)
            session = Session(plan(name), there, GPU)
            for _ in range(50):
                session.step()
            assert session.captured is not None and None not in session.captured.graphs.values()
            learned.append({key: value.double().cpu() for key, value in session.algorithm.state_dict().items()})
    assert gap(*learned) < 1e-4


def test_a_step_that_waits_is_done_eagerly_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with RunContext(GPU, "fp32"):
        session = Session(plan("ERM"), data(), GPU)
        loss = session.algorithm.loss
        session.algorithm.loss = lambda x, y: loss(x, y) * (1 + 0 * loss(x, y).item())
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                session.step()
    assert len(said(caplog)) == 1 and "not captured" in said(caplog)[0]
    assert session.captured is not None and session.captured.graphs == {"train": None}


@pytest.mark.parametrize("name", ["DAT", "DANN", "ADA"])
def test_a_checkpoint_continues_the_same_training(name: str) -> None:
    run = plan(name)
    first = trained(run, "captured", steps=30)
    second = trained(run, "captured", steps=20, state=first.state)
    assert gap(second.learned, trained(run, "captured").learned) < 1e-5


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("mode", ["captured", "compiled"])
def test_averages_of_captured_steps_are_those_of_eager_ones(mode: Mode, average: str) -> None:
    run = plan("DAT", network="small-cnn", average=average)
    means = []
    for how in (mode, "eager"):
        session = trained(run, how, steps=5).session  # type: ignore[arg-type]
        assert session.average is not None
        means.append({"mean": session.average.mean.double().cpu()})
    assert gap(*means) < 1e-3
    plain = trained(replace(run, average=""), mode, steps=5).learned
    assert gap(trained(run, mode, steps=5).learned, plain) < 1e-4, "the training does not notice"


def test_averaged_weights_are_evaluated_by_replays(tmp_path: Path) -> None:
    run = plan("ERM", average="ema")
    outcome = train(replace(run, evaluate_every=5), tmp_path, device="cuda")
    rows = [record for record in outcome.records if record.average]
    assert len(rows) == len(outcome.records) / 2 and outcome.algorithm is not None
    with RunContext(GPU, "fp32"):
        evaluator = Evaluator(
            outcome.algorithm, data(), splits_to_evaluate(run, data()), run.train_domains, capture=False
        )
        for part, scores in evaluator().items():
            assert outcome.selected_average is not None
            found = {(r.domain, r.split): r for r in outcome.evaluation(outcome.selected_average, "ema")}[part]
            assert (found.accuracy, found.loss) == pytest.approx((scores.accuracy, scores.loss), rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("name", ["ERM", "MTL"])
def test_captured_evaluation_equals_eager(name: str) -> None:
    run = plan(name)
    session = trained(run, "captured", steps=5).session
    with RunContext(GPU, "fp32"):
        evaluator = Evaluator(
            session.algorithm, session.environments, splits_to_evaluate(run, data()), run.train_domains
        )
        eager, captured, again = evaluator(), evaluator(), evaluator()
        assert evaluator.graph is not None, "it was captured"
        assert all(captured[part] == pytest.approx(eager[part], rel=1e-5) for part in eager) and again == captured
        session.step()
        assert evaluator() != captured, "a replay sees the weights as they are"


def test_runs_in_turns_are_as_alone(tmp_path: Path) -> None:
    runs = [plan(name, trial=trial) for trial in range(2) for name in ("ERM", "DAT", "DANN")]
    for run in runs:
        train(run, tmp_path / "alone", device="cuda")
    interleaved = InterleavedRuns(Settings(tmp_path / "together", device="cuda"))
    for run in runs:
        interleaved.add(run)
    while interleaved.trainings:
        assert all(not isinstance(news, Status) or news.status == "done" for _, news in interleaved.step_all())
    for run in runs:
        alone, together = (
            {k: v.double() for k, v in RunFolder(tmp_path / place, run).load_model().items()}
            for place in ("alone", "together")
        )
        assert gap(together, alone) < 1e-5, str(run)


def test_a_run_that_does_not_fit_frees_its_memory_and_says_so(tmp_path: Path) -> None:
    """The first layer's output alone is larger than the GPU."""
    images = torch.cuda.get_device_properties(GPU).total_memory // (64 * 28 * 28 * 4)
    huge = plan("ERM", hparams={"batch_size": int(0.6 * images)})
    data()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with pytest.raises(OutOfMemory, match="out of memory; lower batch_size"):
        train(huge, tmp_path, device="cuda", environments=data())
    assert torch.cuda.memory_reserved() <= before + 2**27
    assert train(plan("ERM"), tmp_path, device="cuda", environments=data()).status.status == "done"


def test_a_run_that_has_ended_leaves_no_memory_behind(tmp_path: Path) -> None:
    """At once, and not when Python next looks for cycles."""
    data()
    gc.collect()
    gc.disable()
    try:
        held = [_held_after(plan("DAT", trial=trial), tmp_path) for trial in range(3)]
    finally:
        gc.enable()
    assert held[1] == held[2]


def _held_after(run: Run, out: Path) -> int:
    train(run, out, device="cuda", environments=data())
    torch._C._cuda_clearCublasWorkspaces()  # one for each of a pool of streams
    return torch.cuda.memory_allocated()


@pytest.mark.slow
def test_tf32_and_bf16_are_as_accurate_as_fp32_within_noise(tmp_path: Path) -> None:
    """Three trials each; the difference of the means is less than twice its standard error, or one point."""
    accuracies: dict[str, list[float]] = {}
    for precision in ("fp32", "tf32", "bf16"):
        for trial in range(3):
            run = plan("ERM", precision, steps=1001, trial=trial, hparams={"lr": 1e-3, "batch_size": 64, "dropout": 0})
            outcome = train(run, tmp_path, device="cuda", environments=data())
            seen = [r.accuracy for r in outcome.records[-4:] if r.domain in run.train_domains]
            accuracies.setdefault(precision, []).append(sum(seen) / len(seen))
    exact = torch.tensor(accuracies["fp32"])
    for precision in ("tf32", "bf16"):
        other = torch.tensor(accuracies[precision])
        error = float(((exact.var() + other.var()) / 3).sqrt())
        assert abs(float(exact.mean() - other.mean())) < max(2 * error, 0.01), accuracies
