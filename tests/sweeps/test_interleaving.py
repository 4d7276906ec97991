"""Interleaved runs in one process: each the same, bit by bit, as alone; none harmed by another."""

import errno
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import short_trainings
from domainwise.algorithms.adversarial import UAT
from domainwise.algorithms.base import Algorithm
from domainwise.core.errors import UserError
from domainwise.core.locks import RunLock
from domainwise.engine.evaluation import Evaluator
from domainwise.engine.execution.isolation import RunContext, arithmetic
from domainwise.engine.recorder import Recorder
from domainwise.engine.train import train
from domainwise.protocol.records import Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.sweeps import local
from domainwise.sweeps.events import Settings
from domainwise.sweeps.interleaving import DiskRefused, InterleavedRuns, RunUpdate
from domainwise.sweeps.local import _Pool, execute
from short_trainings import saved_results

plan = partial(short_trainings.plan, dropout=0.3, evaluate_every=100)
RUNS = (plan("DAT"), plan("ERM", steps=5), plan("AT", steps=3), plan("Mixup", trial=1), plan("DANN"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each run leaves when trained on its own."""
    out = tmp_path_factory.mktemp("alone")
    for run in RUNS:
        train(run, out, device="cpu")
    return out


def interleaved(
    runs: tuple[Run, ...], out: Path, each_round: Callable[[InterleavedRuns], object] = lambda _: None
) -> list[RunUpdate]:
    """All updates until nothing is left to do."""
    in_progress = InterleavedRuns(Settings(out, device="cpu", retry=True))
    for run in runs:
        in_progress.add(run)
    updates: list[RunUpdate] = []
    while in_progress.trainings:
        updates += [update for _, update in in_progress.step_all()]
        each_round(in_progress)
    return updates


@pytest.mark.parametrize("method", ["append", "save_checkpoint", "finish", "create"])
def test_a_full_disk_interrupts_runs_and_fails_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: Path, method: str
) -> None:
    def full(*_: object) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            if method == "save_checkpoint":
                raise RuntimeError("unexpected pos 7168 vs 7120")  # noqa: B904 (as torch.save does)
            raise

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, method, full)
        patch.setattr(Recorder, "checkpoint_due", lambda _: True)
        refused = [update for update in interleaved(RUNS[:2], tmp_path) if isinstance(update, DiskRefused)]
    assert len(refused) == 2
    for update in refused:
        assert update.message.startswith(f"No space left on device: cannot write to {tmp_path}")
    assert not any(RunFolder(tmp_path, run).status() for run in RUNS[:2])
    interleaved(RUNS[:2], tmp_path)
    for run in RUNS[:2]:
        assert saved_results(run, tmp_path) == saved_results(run, alone)


def test_all_ask_for_their_scores_before_anybody_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_and_heard: list[str] = []

    def watched(what: str) -> Callable[..., object]:
        do = getattr(Evaluator, what)
        return lambda *given: asked_and_heard.append(what) or do(*given)  # type: ignore[func-returns-value]

    for what in ("launch", "results"):
        monkeypatch.setattr(Evaluator, what, watched(what))
    interleaved((plan("ERM", steps=1), plan("DAT", steps=1)), tmp_path)
    assert asked_and_heard == ["launch", "launch", "results", "results"]


def test_interleaved_each_run_is_as_it_is_alone(tmp_path: Path, alone: Path) -> None:
    updates = interleaved(RUNS, tmp_path)
    assert sum(isinstance(update, int) for update in updates) == sum(run.steps for run in RUNS)
    for run in RUNS:
        assert saved_results(run, tmp_path) == saved_results(run, alone), str(run)


def test_a_run_that_fails_harms_no_other(tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cannot be built, one breaks in its third step, one is somebody else's."""
    impossible = replace(RUNS[1], hparams=RUNS[1].hparams | {"dropout": 2.0})
    breaking, taken = plan("UAT"), plan("ERM", trial=3)

    def explode(*_: object) -> None:
        raise RuntimeError("broken\nfor good")

    def break_third_step(_: InterleavedRuns) -> None:
        break_third_step.rounds += 1
        if break_third_step.rounds == 2:
            monkeypatch.setattr("domainwise.algorithms.adversarial.UAT.step", explode)

    break_third_step.rounds = 0
    RunFolder(tmp_path, taken).create()
    with RunLock(RunFolder(tmp_path, taken).path):
        updates = interleaved((impossible, RUNS[0], breaking, taken, RUNS[3]), tmp_path, break_third_step)
    ends = {update.run: update for update in updates if isinstance(update, Status)}
    assert "locked" in updates and taken.id not in ends
    assert ends[impossible.id].status == "failed" and "dropout" in ends[impossible.id].reason
    assert ends[breaking.id].reason == "RuntimeError: broken for good"
    for run in (RUNS[0], RUNS[3]):
        assert saved_results(run, tmp_path) == saved_results(run, alone)


def test_a_run_without_memory_frees_what_it_held_and_is_tried_alone(
    tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[Algorithm]] = []

    def explode(self: UAT, *_: object) -> None:
        held.append(weakref.ref(self))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. And so on.")

    monkeypatch.setattr("domainwise.algorithms.adversarial.UAT.step", explode)
    big = plan("UAT")
    updates = interleaved((big, RUNS[0]), tmp_path)
    assert "out of memory" in updates and RunFolder(tmp_path, big).status() is None
    assert saved_results(RUNS[0], tmp_path) == saved_results(RUNS[0], alone)
    (end,) = interleaved((big,), tmp_path)
    assert isinstance(end, Status) and end.status == "failed"
    assert "CUDA out of memory; lower batch_size" in end.reason
    with pytest.raises(UserError, match="CUDA out of memory"):
        train(big, tmp_path, device="cpu")
    assert len(held) == 3 and not any(reference() for reference in held)


def test_what_lost_its_worker_or_had_no_room_is_next_trained_alone(tmp_path: Path) -> None:
    pool = _Pool(deque(), Settings(tmp_path), 0, runs_per_worker=2)
    free, with_one = SimpleNamespace(runs={}), SimpleNamespace(runs={RUNS[0].id: RUNS[0]})
    pool.attempts[RUNS[0]] = 1
    assert pool.has_room(free, RUNS[1]) and pool.has_room(with_one, RUNS[1])
    pool.attempts[RUNS[1]] = 1
    assert pool.has_room(free, RUNS[1]) and not pool.has_room(with_one, RUNS[1])
    pool.attempts[RUNS[0]] = 2
    assert not pool.has_room(with_one, RUNS[2]), "and nobody joins it"


def test_all_save_when_they_are_stopped_and_go_on_later(tmp_path: Path, alone: Path) -> None:
    updates = interleaved(RUNS, tmp_path, lambda in_progress: in_progress.stop())
    assert updates == [0] * len(RUNS), "each made one step, and no update tells of the interruption"
    for run in RUNS:
        checkpoint = RunFolder(tmp_path, run).load_checkpoint()
        assert checkpoint is not None and checkpoint["next_step"] == 1
    interleaved(RUNS, tmp_path)
    for run in RUNS:
        assert saved_results(run, tmp_path) == saved_results(run, alone)


@pytest.mark.usefixtures("quick_workers")
def test_a_workers_runs_are_interleaved(tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All updates come through one pipe, and each is attributed to its run."""
    monkeypatch.setattr(local, "REPORT_SECONDS", 0.0)
    steps: dict[Run, list[int]] = {run: [] for run in RUNS}
    for event in execute(RUNS, Settings(tmp_path, "cpu"), workers=1, per_gpu=3):
        steps[event.run].append(event.step)
    assert all(seen[-1] == run.steps - 1 and seen == sorted(seen) for run, seen in steps.items())
    for run in RUNS:
        assert saved_results(run, tmp_path) == saved_results(run, alone)


def test_random_states_are_swapped_in_and_out() -> None:
    torch.manual_seed(1)
    outside = torch.get_rng_state()
    mine = RunContext(torch.device("cpu"), "fp32")
    with mine:
        torch.manual_seed(2)
        expected = torch.rand(4)
        torch.manual_seed(2)
        first = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), outside)
    with pytest.raises(ValueError, match="goes on"), mine:
        assert torch.equal(torch.cat([first, torch.rand(2)]), expected), "it continues where it stopped"
        raise ValueError("goes on")
    assert torch.equal(torch.get_rng_state(), outside), "also after an error"


@pytest.fixture
def flags() -> Iterator[Callable[[], tuple[object, ...]]]:
    cudnn = torch.backends.cudnn
    yield lambda: (torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic)


def test_strict_fp32_allows_no_tf32_and_leaves_the_flags_as_they_were(flags: Callable[[], tuple[object, ...]]) -> None:
    before = flags()
    for precision, expected in (("fp32", "highest"), ("tf32", "high"), ("bf16", "high")):
        with pytest.raises(KeyError), arithmetic(precision):
            assert flags() == (expected, precision != "fp32", True)
            raise KeyError
        assert flags() == before
