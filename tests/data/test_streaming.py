"""Images that stay on the host: the same batches, the same results, gathered ahead, and no thread left behind."""

import gc
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from domainwise.core.seeds import generator
from domainwise.data import environments
from domainwise.data.batches import Batches, StreamedBatches, batches_of
from domainwise.data.environments import Environments, fits_memory
from domainwise.data.streaming import DEPTH, chunks
from domainwise.engine.result import TrainingResult
from domainwise.engine.train import Interrupted, train
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan_run import plan_run
from short_trainings import saved_results

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def data(count: int = 30, size: int = 6) -> Environments:
    random = torch.Generator().manual_seed(0)
    domains = {}
    for name in ("scene1", "scene2", "scene3"):
        images = torch.randint(0, 256, (count, 3, size, size), generator=random, dtype=torch.uint8)
        domains[name] = (images, torch.randint(0, 3, (count,), generator=random))
    return Environments.from_arrays(domains, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.1])


def rows(environments: Environments) -> list[Tensor]:
    return [environments.split(domain, 0)["in"] for domain in environments.domains[:2]]


def batches(device: str, streamed: bool, key: str = "test") -> Batches:
    there = data().to(device, streamed=streamed)
    return batches_of(there, rows(there), 4, generator(key, device=device))


def drawn(source: Batches, number: int) -> list[tuple[Tensor, Tensor]]:
    return [source.draw() for _ in range(number)]


def equal(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]]) -> bool:
    return all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True))


def waiting_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


# the same batches


@pytest.mark.parametrize("device", DEVICES)
def test_streamed_batches_are_the_resident_ones_bit_by_bit(device: str) -> None:
    resident, streamed = batches(device, False), batches(device, True)
    assert type(resident) is Batches and type(streamed) is StreamedBatches
    assert equal(drawn(resident, 12), drawn(streamed, 12))
    x, y = streamed.draw()
    assert x.shape == (2, 4, 3, 6, 6) and x.device.type == y.device.type == device
    assert not equal(drawn(batches(device, True, "other"), 1), drawn(batches(device, True), 1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("after", [0, 1, 5])
@pytest.mark.parametrize("first", [False, True], ids=["from resident", "from streamed"])
@pytest.mark.parametrize("second", [False, True], ids=["to resident", "to streamed"])
def test_the_state_is_that_of_the_batches_taken(device: str, after: int, first: bool, second: bool) -> None:
    source = batches(device, first)
    drawn(source, after)
    state = source.state().clone()
    expected = drawn(source, 4)
    target = batches(device, second, "another stream")
    drawn(target, 2)
    target.load_state(state)
    assert torch.equal(target.state(), state)
    assert equal(drawn(target, 4), expected)
    source.load_state(state)
    assert equal(drawn(source, 4), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1, 7, 100])
def test_chunks_are_all_rows_in_order(device: str, size: int) -> None:
    resident, streamed = data().to(device), data().to(device, streamed=True)
    chosen = torch.randperm(90, device=device)
    there, ahead = list(chunks(resident, chosen, size)), list(chunks(streamed, chosen, size))
    assert equal(there, ahead)
    assert torch.equal(torch.cat([x for x, _ in ahead]), resident.images[chosen])
    assert [len(y) for _, y in ahead] == [len(part) for part in chosen.split(size)]


def test_taking_rows_keeps_their_shape() -> None:
    for streamed in (False, True):
        there = data().to("cpu", streamed=streamed)
        some = torch.tensor([[3, 80], [3, 0]])
        images, labels = there.gather(some)
        assert torch.equal(images, there.images[some]) and torch.equal(labels, there.labels[some])


# the same results


def trained(run: Run, out: Path, streamed: bool, progress: Callable[[int], None] = lambda _: None) -> TrainingResult:
    return train(run, out, device="cpu", environments=data().to("cpu", streamed=streamed), progress=progress)


def plan(algorithm: str) -> Run:
    facts = {"train_domains": ["scene1", "scene2"], "steps": 7, "evaluate_every": 3, "track": ["penalties"]}
    return plan_run("BackgroundDigits", algorithm, "scene3", hparams={"batch_size": 4}, **facts)


@pytest.mark.parametrize("algorithm", ["ERM", "DAT", "MLDG"])
def test_a_streamed_training_leaves_the_same_bits(tmp_path: Path, algorithm: str) -> None:
    run = plan(algorithm)
    for name, streamed in (("resident", False), ("streamed", True)):
        assert trained(run, tmp_path / name, streamed).status.status == "done"
    assert saved_results(run, tmp_path / "resident") == saved_results(run, tmp_path / "streamed")


def test_an_interrupted_streamed_training_continues_with_the_same_bits(tmp_path: Path) -> None:
    run = plan("DAT")
    trained(run, tmp_path / "whole", streamed=False)

    def interrupt(step: int) -> None:
        if step == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        trained(run, tmp_path / "parts", streamed=True, progress=interrupt)
    trained(run, tmp_path / "parts", streamed=True)
    assert saved_results(run, tmp_path / "whole") == saved_results(run, tmp_path / "parts")


# ahead, and no longer than needed


def test_batches_are_gathered_while_nobody_asks() -> None:
    source = batches("cpu", True)
    assert isinstance(source, StreamedBatches)
    source.draw()
    deadline = time.monotonic() + 10
    while not all(job.done() for job in source.prefetcher.pending) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [job.done() for job in source.prefetcher.pending] == [True] * DEPTH


def test_threads_end_with_what_they_work_for() -> None:
    gc.collect()
    before = len(waiting_threads())
    source = batches("cpu", True)
    source.draw()
    assert len(waiting_threads()) == before + 1
    del source
    half = chunks(data().to("cpu", streamed=True), torch.arange(90), 5)
    next(half)
    half.close()
    assert list(chunks(data().to("cpu", streamed=True), torch.arange(90), 50))
    deadline = time.monotonic() + 10
    while len(waiting_threads()) > before and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert len(waiting_threads()) == before


def test_what_goes_wrong_in_the_thread_is_heard_of() -> None:
    source = batches("cpu", True)
    source.rows = source.rows + 1000
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        source.draw()


# when


def test_images_live_on_a_device_that_has_twice_their_room() -> None:
    assert fits_memory(50, 100) and not fits_memory(51, 100) and fits_memory(10**15, None)


def test_images_too_large_for_the_device_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, elsewhere = data(), "meta"
    monkeypatch.setattr(environments, "free_memory", lambda _: 2 * whole.images.nbytes)
    there = whole.to(elsewhere)
    assert not there.streamed and there.images.device.type == there.labels.device.type == elsewhere
    monkeypatch.setattr(environments, "free_memory", lambda _: 2 * whole.images.nbytes - 1)
    assert not there.to(elsewhere).streamed and not whole.to("cpu").streamed, "what is there already needs no room"
    assert whole.to(elsewhere).streamed and not whole.to(elsewhere, streamed=False).streamed
    assert whole.to(elsewhere).images.device.type == "cpu" and whole.to(elsewhere).labels.device.type == elsewhere
    monkeypatch.undo()
    assert not whole.to("cpu").streamed
    assert whole.to("cpu", streamed=True).to("cpu").streamed, "once streamed, always streamed"


@pytest.mark.gpu
def test_on_a_gpu_images_stay_on_the_host_and_taking_them_never_waits_for_the_device() -> None:
    source = batches("cuda", True)
    assert source.environments.images.device.type == "cpu" and source.environments.labels.is_cuda
    assert isinstance(source, StreamedBatches)
    source.draw()
    while not all(job.done() for job in source.prefetcher.pending):
        time.sleep(0.01)
    busy = torch.randn(8192, 8192, device="cuda")
    busy.copy_(busy @ busy)  # the first product takes memory of its own
    for _ in range(20):
        busy = busy @ busy
    began = time.monotonic()
    source.draw()
    taken = time.monotonic() - began
    torch.cuda.synchronize()
    assert taken < (time.monotonic() - began) / 5, "the batch was handed over while the device was still busy"


@pytest.mark.gpu
def test_a_host_that_is_faster_than_the_device_does_not_fill_it_with_batches() -> None:
    there = data(size=256).to("cuda", streamed=True)
    source = batches_of(there, rows(there), 4, generator("test", device="cuda"))
    source.draw()
    busy = torch.randn(8192, 8192, device="cuda")
    busy.copy_(busy @ busy)  # the first product takes memory of its own
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(40):
        busy.copy_(busy @ busy)
        source.advance()
    batch = 2 * 4 * 3 * 256 * 256
    assert torch.cuda.max_memory_allocated() - before < busy.nbytes + 12 * batch, "not all 40"
