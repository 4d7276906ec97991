"""What a step must keep so that it can be captured, compiled and padded; checked without a GPU."""

import copy
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Algorithm
from domainwise.data.augment import Augmenter, for_augmentation, preparation
from domainwise.data.augmentations import AUGMENTATIONS
from domainwise.data.batches import StreamedBatches
from domainwise.data.catalogue import DATASETS
from domainwise.data.environments import Environments
from domainwise.data.originals import Originals
from domainwise.engine import evaluation
from domainwise.engine.evaluation import Evaluator, splits_to_evaluate
from domainwise.engine.execution import Execution, capture
from domainwise.engine.execution.capture import CapturedStep, Snapshot
from domainwise.engine.execution.compilation import compiled, padded, round_up
from domainwise.engine.optimisation import clip_gradients
from domainwise.engine.session import Session
from domainwise.nets.modes import is_per_sample
from domainwise.nets.network import Network, build
from domainwise.protocol.averages import AVERAGES
from domainwise.protocol.metrics import MEASURED
from domainwise.sweeps.plan_run import plan_run
from small_problems import CLASSES, advance, batches, features, make, weights

EVERY = sorted(ALGORITHMS)
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "lift_fresh")
"""Operations that wait for a GPU, give shapes that depend on data, or make a constant on the host."""
ON_A_CPU_ONLY = {"RSC": "quantile checks its levels", "CDANN": "one_hot checks its classes"}


class Watch(TorchDispatchMode):
    """Writes down every operation with all that is not a tensor's value, and objects to those that wait."""

    def __init__(self, waiting_is_fine: bool) -> None:
        super().__init__()
        self.waiting_is_fine = waiting_is_fine
        self.seen: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = function(*arguments, **(options or {}))
        name = str(function).removeprefix("aten.").partition(".")[0]
        given = tree_flatten((arguments, options))[0]
        assert self.waiting_is_fine or name not in WAITING, f"{function} waits for the device"
        if name in ("index", "index_put", "index_put_"):
            masks = [a for a in given[1:] if isinstance(a, Tensor) and a.dtype in (torch.bool, torch.uint8)]
            assert not masks, f"{function} with a mask: the shape depends on data"
        self.seen.append((str(function), *map(self._fixed, (*given, *tree_flatten(result)[0]))))
        return result

    @staticmethod
    def _fixed(value: object) -> object:
        if isinstance(value, torch.Generator):
            return "a generator"
        return (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else str(value)


def watched(algorithm: Algorithm, number: int, batch: tuple[Tensor, Tensor], waiting: bool) -> list[tuple[Any, ...]]:
    algorithm.schedule(number, lambda: batch)
    with Watch(waiting) as watch:
        algorithm.step(*batch)
    return watch.seen


@pytest.mark.parametrize("name", EVERY)
def test_steps_of_a_phase_are_the_same_operations_and_none_waits(name: str) -> None:
    """A replayed graph repeats the operations, shapes and numbers that were recorded: they may not change."""
    short = {"min_steps": 1, "phases": 2, "anneal": 3, "d_steps": 2, "head_steps": 2}
    method = ALGORITHMS[name]
    algorithm = make(name, **{key: value for key, value in short.items() if key in method.space})
    clip_gradients(algorithm, 0.1)
    by_phase: dict[str, list[tuple[Any, ...]]] = {}
    for number, batch in enumerate(batches(7)):
        seen = watched(algorithm, number, batch, waiting=number == 0 or name in ON_A_CPU_ONLY)  # moments are made
        if number > 2:
            assert seen == by_phase.setdefault(algorithm.phase, seen)
    assert len(by_phase) == (2 if name in ("DANN", "CDANN", "ADRMX") else 1)


@pytest.mark.parametrize("average", AVERAGES)
def test_averaging_is_the_same_operations_in_every_step_and_does_not_wait(average: str) -> None:
    run = plan_run("BackgroundDigits", "ERM", [0], hparams={"batch_size": 4}, average=average)
    session = Session(run, DATASETS["BackgroundDigits"].load(), torch.device("cpu"))
    assert session.average is not None
    seen = []
    for step in range(3):
        session.average.schedule(step)
        with Watch(False) as watch:
            session.average.update()
        seen.append(watch.seen)
    assert seen[0] == seen[1] == seen[2] and len(seen[0]) < 3 * len(session.average.parameters) + 3


def test_a_recording_leaves_no_trace_in_the_average(recorder: "Recorder") -> None:
    """The average is among the tensors that a snapshot puts back."""
    run = plan_run("BackgroundDigits", "ERM", [0], hparams={"batch_size": 4}, average="ema")
    session = Session(run, DATASETS["BackgroundDigits"].load(), torch.device("cpu"), execution=Execution("captured"))
    assert session.captured is not None and session.average is not None
    before = session.captured._snapshot()
    session.step()
    changed = session.average.mean.clone()
    before.restore()
    assert not torch.equal(changed, session.average.mean)


@pytest.mark.parametrize("bad", ["item", "mask", "constant", "counter"])
def test_the_watch_objects(bad: str) -> None:
    """To what would break a capture, so that the test above means something."""
    algorithm, (batch,) = make("ERM"), batches(1)
    calls = iter(range(9))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        losses = algorithm.losses(x, y)
        if bad == "item":
            return losses.mean() * losses.max().item()
        if bad == "mask":
            return losses[losses > 0].mean()
        if bad == "constant":
            return losses.mean() * torch.tensor(2.0)
        return losses.mean() * next(calls)

    algorithm.loss = loss
    advance(algorithm, [batch])
    if bad == "counter":
        assert watched(algorithm, 1, batch, False) != watched(algorithm, 2, batch, False)
    else:
        with pytest.raises(AssertionError, match=r"waits|depends on data"):
            watched(algorithm, 1, batch, False)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("first", [0, 2], ids=["at the start", "later"])
def test_warming_up_leaves_no_trace(name: str, first: int) -> None:
    """Weights, moments, buffers, gradients and random numbers are as if the steps had not been."""
    net = torch.nn.Sequential(features(), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(5))
    data = batches(6)
    trained = []
    for disturbed in (False, True):
        torch.manual_seed(0)
        algorithm = make(name, net=Network(copy.deepcopy(net), CLASSES, feature_size=5, dropout=0.3))
        total = torch.zeros((), dtype=torch.float64)
        torch.manual_seed(4)
        for number, (x, y) in enumerate(data):
            algorithm.schedule(number, lambda: data[0])
            if disturbed and number >= first:
                before = Snapshot(algorithm, [total], [algorithm.noise])
                for _ in range(3):
                    total += algorithm.step(x, y)
                before.restore()
                assert all(p.grad is None for p in algorithm.parameters())
            total += algorithm.step(x, y)
        trained.append(algorithm.state_dict() | {"total": total, "torch": torch.rand(1), "noise": algorithm.random(1)})
    for key, value in trained[0].items():
        assert torch.equal(value, trained[1][key]), key


class Recorder:
    """In place of the GPU: counts recordings and replays, does the work on replay."""

    def __init__(self) -> None:
        self.recorded: list[str] = []
        self.failure: list[Exception] = []

    def record(self, work: Callable[[], None], *_: object) -> Any:
        if self.failure:
            raise self.failure.pop(0)
        self.recorded.append("recorded")
        graph = type("Graph", (), {})()
        graph.replay = work
        return graph


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    recorder = Recorder()
    monkeypatch.setattr(capture, "record", recorder.record)
    yield recorder


def captured(name: str, compile: bool = False) -> tuple[CapturedStep, Callable[[], None], Algorithm, list[str]]:
    """An algorithm's captured step, its work, and the phases it has been done in."""
    algorithm, data, done = make(name), batches(1)[0], []

    def work() -> None:
        done.append(algorithm.phase)
        algorithm.step(*data)

    return CapturedStep(algorithm, compile=compile), work, algorithm, done


def test_each_phase_is_recorded_once(recorder: Recorder) -> None:
    step, work, algorithm, done = captured("DANN")
    for number in range(6):
        algorithm.schedule(number, lambda: batches(1)[0])
        step(work)
    assert set(step.graphs) == {"network", "discriminator"} and len(recorder.recorded) == 2
    assert done == ["network", "discriminator"] * 3
    step.discard_graphs()
    step(work)
    assert len(recorder.recorded) == 3


def test_what_cannot_be_recorded_is_done_and_said_once(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    step, work, _, done = captured("ERM")
    recorder.failure = [RuntimeError("called a synchronizing CUDA operation\nand more")]
    with caplog.at_level(logging.WARNING):
        step(work), step(work)
    assert len(done) == 2 and not recorder.recorded
    assert caplog.messages == ["ERM is not captured, and slower for it: called a synchronizing CUDA operation"]


def test_what_cannot_be_compiled_is_recorded_as_it_is(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    step, work, _, done = captured("ERM", compile=True)
    recorder.failure = [RuntimeError("no compiler")]
    step(work)
    assert recorder.recorded == ["recorded"] and len(done) == 1
    assert caplog.messages == ["ERM is captured without being compiled: no compiler"]
    twice, work, _, _ = captured("LDAT", compile=True)
    twice(work)
    assert len(caplog.messages) == 1, "what is known not to compile is not tried"


def test_a_lack_of_memory_is_no_reason_to_go_on_eagerly(recorder: Recorder) -> None:
    step, work, _, done = captured("ERM", compile=True)
    recorder.failure = [torch.OutOfMemoryError("out of memory")]
    with pytest.raises(torch.OutOfMemoryError):
        step(work)
    assert not done


def test_a_training_is_gone_when_nobody_holds_it(recorder: Recorder) -> None:
    """At once, with all the memory it holds on a GPU, and not when Python next looks for cycles."""
    run = plan_run("BackgroundDigits", "DAT", [0], hparams={"batch_size": 4})
    data = DATASETS["BackgroundDigits"].load()
    session = Session(run, data, torch.device("cpu"), execution=Execution("captured"))
    session.step()
    assert session.captured is not None
    session.captured.graphs = dict.fromkeys(session.captured.graphs)  # the recorder's hold the work, a GPU's do not
    parts = {part: rows[:8] for part, rows in splits_to_evaluate(run, session.environments).items()}
    evaluator = Evaluator(session.algorithm, session.environments, parts, run.train_domains)
    evaluator()
    held = [weakref.ref(thing) for thing in (session, session.algorithm, evaluator)]
    gc.collect()
    gc.disable()
    try:
        del session, evaluator
        assert recorder.recorded and [ref() for ref in held] == [None, None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["DAT", "ADA"])
def test_streamed_images_come_to_where_a_captured_step_looks(name: str, recorder: Recorder) -> None:
    """Steps on images that stream are those on resident ones, bit by bit; nothing is gathered while one is recorded."""
    run = plan_run(
        "BackgroundDigits",
        name,
        [0],
        hparams={"batch_size": 4} | ({"min_steps": 2, "phases": 2, "memory": 8} if name == "ADA" else {}),
    )
    learned = []
    for streamed in (False, True):
        data = DATASETS["BackgroundDigits"].load().to("cpu", streamed=streamed)
        session = Session(run, data, torch.device("cpu"), execution=Execution("captured"))
        assert session.captured is not None
        assert (session.batches.generator in session.captured.generators) != streamed
        for _ in range(6):
            session.step()
        learned.append(session.algorithm.state_dict())
        if isinstance(session.batches, StreamedBatches):
            session.batches.settle()
            assert all(job.done() for job in session.batches.prefetcher.pending)
    assert len(recorder.recorded) == 2 and all(
        torch.equal(a, b) for a, b in zip(*map(dict.values, learned), strict=True)
    )


def test_evaluation_is_recorded_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run = plan_run("BackgroundDigits", "ERM", [0], hparams={"batch_size": 4})
    session = Session(run, DATASETS["BackgroundDigits"].load(), torch.device("cpu"))
    parts = {part: rows[:60] for part, rows in splits_to_evaluate(run, session.environments).items()}
    evaluator = Evaluator(session.algorithm, session.environments, parts, run.train_domains)
    recorded: list[int] = []

    def record(work: Callable[[], None], warm_up: int) -> Any:
        recorded.append(warm_up)
        return SimpleNamespace(replay=work)

    monkeypatch.setattr(evaluation, "record", record)
    evaluator.capture = True
    first = evaluator()
    assert not recorded and evaluator() == first and evaluator() == first and len(recorded) == 1
    session.step()
    assert evaluator() != first and evaluator.scores.shape == (len(parts), 2 + len(MEASURED))


# compiled and padded


def test_sizes_are_few_and_not_much_too_large() -> None:
    sizes = {round_up(n) for n in range(16, 1537)}
    assert sizes == {16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536}
    assert all(n <= round_up(n) < 1.5 * n for n in range(2, 2000))
    assert [round_up(n) for n in (1, 2, 3, 5, 7)] == [1, 2, 3, 6, 8]


@pytest.mark.parametrize("name", EVERY)
def test_padding_changes_nothing(name: str) -> None:
    """3 x 5 samples, computed as 16: weights, and all else, as without."""
    plain, padding = make(name, batch_size=5), make(name, batch_size=5)
    for module in padding.modules():
        if isinstance(module, Network):
            module.features.forward = padded(module.features.forward)
    for algorithm in (plain, padding):
        torch.manual_seed(6)
        advance(algorithm, batches(5, size=5))
    for key, value in plain.state_dict().items():
        if key.startswith("context."):
            continue  # biases before a BatchNorm: their gradient is rounding, which Adam makes large
        assert torch.allclose(value, padding.state_dict()[key], rtol=1e-12, atol=1e-12), key


def test_padding_keeps_the_memory_format_and_the_shape() -> None:
    shapes = []

    def forward(x: Tensor) -> Tensor:
        shapes.append((x.shape, x.is_contiguous(memory_format=torch.channels_last)))
        return x.flatten(1)

    x = torch.rand(5, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert torch.equal(padded(forward)(x), x.flatten(1)) and padded(forward)(torch.rand(7, 9)).shape == (7, 9)
    assert shapes == [((6, 3, 4, 4), True), ((8, 9), False)]


def test_only_networks_whose_samples_are_apart_are_padded() -> None:
    apart = {name: is_per_sample(build(name, (3, 32, 32), 2).features) for name in ("mnist-cnn", "mlp", "resnet18")}
    assert all(apart.values())
    assert not is_per_sample(build("resnet18-live", (3, 32, 32), 2).features.train())
    assert is_per_sample(build("resnet18-live", (3, 32, 32), 2).features.eval())
    assert not is_per_sample(torch.nn.Linear(2, 2)), "a network that does not say so"


AUGMENTED = [name for name, augmentation in AUGMENTATIONS.items() if augmentation is not None]


@pytest.mark.parametrize("name", AUGMENTED)
def test_augmentation_is_padded_exactly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    augmenter, images = augmented(name)
    monkeypatch.setattr(Augmenter, "at_once", staticmethod(lambda _: True))
    numbers = augmenter.draw(len(images))
    plain = augmenter.augment(images, numbers)
    assert torch.equal(padded(augmenter.augment)(images, numbers), plain)


@pytest.mark.parametrize("name", AUGMENTED)
def test_augmentation_is_the_same_operations_in_every_step_and_does_not_wait(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    augmenter, images = augmented(name)
    monkeypatch.setattr(Augmenter, "at_once", staticmethod(lambda _: True))
    seen = []
    for _ in range(3):
        with Watch(False) as watch:
            result = augmenter(images)
        seen.append(watch.seen)
    assert seen[0] == seen[1] == seen[2] and result.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", AUGMENTED)
def test_augmentation_compiles(name: str) -> None:
    augmenter, images = augmented(name)
    numbers = augmenter.draw(len(images))
    plain = augmenter.augment(images, numbers)
    with compiled(make("ERM"), augmenter, "aot_eager"):
        assert torch.allclose(augmenter.augment(images, numbers), plain, atol=1e-4)
    assert "augment" not in vars(augmenter)


def augmented(name: str) -> tuple[Augmenter, Tensor]:
    """An augmenter, and five images for it, or their places."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (5, 3, 20, 16), dtype=torch.uint8, generator=generator)
    labels = torch.zeros(5, dtype=torch.int64)
    environments = Environments.from_arrays({"a": (images, labels)}, classes=["x"])
    originals = Originals.of(images.flatten(), [(20, 16), (16, 20), (20, 16), (10, 32), (16, 20)])
    environments = for_augmentation(name, replace(environments, open_originals=lambda: originals))
    augmenter = preparation(name, environments, generator)
    assert augmenter is not None
    return augmenter, images if environments.originals is None else originals.places


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EVERY if not ALGORITHMS[name].differentiates_twice])
def test_compiled_networks_train_the_same_and_are_compiled_once(name: str) -> None:
    compilations: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compilations.append(len(inputs))
        from torch._dynamo.backends.debugging import aot_eager

        return aot_eager(graph, inputs)

    plain = make(name)
    advance(plain, batches(4))
    counts = []
    for _ in range(2):
        algorithm = make(name)
        with compiled(algorithm, backend=backend):
            advance(algorithm, batches(4))
        assert torch.allclose(weights(algorithm), weights(plain), rtol=1e-9, atol=1e-12)
        counts.append(len(compilations))
    assert counts[0] > 0 and counts[1] == counts[0], "a second run of the same shapes finds them compiled"
    assert not [m for m in algorithm.modules() if "forward" in vars(m)], "nothing is left behind"


def test_the_page_lists_every_algorithm_that_is_captured() -> None:
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    measured = page.partition("captured equals eager within")[2].partition(";")[0]
    not_yet = page.partition("Not yet run on a GPU:")[2].partition(".")[0]
    listed = f"{measured} {not_yet}".replace(",", " ").split()
    assert [name for name in EVERY if listed.count(name) != 1] == []
