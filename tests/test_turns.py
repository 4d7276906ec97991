"""Runs that take turns in one process: each the same, bit by bit, as alone; none harmed by another."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from domainwise.claims import Claim
from domainwise.engine.apart import Surroundings, arithmetic
from domainwise.engine.train import train
from domainwise.records import Record, RunFolder, Status
from domainwise.runs import Run
from domainwise.sweep.events import Event, Settings
from domainwise.sweep.local import execute
from domainwise.sweep.turns import News, Turns


def plan(algorithm: str, trial: int = 0, steps: int = 8, **hparams: object) -> Run:
    given = {"batch_size": 4, "dropout": 0.3, **hparams}
    return Run.plan("BackgroundDigits", algorithm, [0], hparams=given, trial=trial, steps=steps, evaluate_every=100)


RUNS = (plan("DAT"), plan("ERM", steps=5), plan("AT", steps=3), plan("Mixup", trial=1), plan("DANN"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each run leaves when trained on its own."""
    out = tmp_path_factory.mktemp("alone")
    for run in RUNS:
        train(run, out, device="cpu")
    return out


def left(run: Run, out: Path) -> tuple[list[Record], Status | None, bytes]:
    folder = RunFolder(out, run)
    records, status = folder.read()
    return [replace(record, seconds=0.0) for record in records], status, folder.model_file.read_bytes()


def in_turns(runs: tuple[Run, ...], out: Path, each_round: Callable[[Turns], object] = lambda _: None) -> list[News]:
    """All that was told until nothing is left to do."""
    turns = Turns(Settings(out, device="cpu", retry=True))
    for run in runs:
        turns.take_in(run)
    told: list[News] = []
    while turns.trainings:
        told += [news for _, news in turns.round()]
        each_round(turns)
    return told


def test_in_turns_each_run_is_as_it_is_alone(tmp_path: Path, alone: Path) -> None:
    told = in_turns(RUNS, tmp_path)
    assert sum(isinstance(news, int) for news in told) == sum(run.steps for run in RUNS)
    for run in RUNS:
        assert left(run, tmp_path) == left(run, alone), str(run)


def test_a_run_that_fails_harms_no_other(tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cannot be built, one breaks in its third step, one is somebody else's."""
    impossible = replace(RUNS[1], hparams=RUNS[1].hparams | {"dropout": 2.0})
    breaking, taken = plan("UAT"), plan("ERM", trial=3)

    def explode(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory left\nfor this")

    def break_third_step(turns: Turns) -> None:
        break_third_step.rounds += 1
        if break_third_step.rounds == 2:
            monkeypatch.setattr("domainwise.algorithms.adversarial.UAT.step", explode)

    break_third_step.rounds = 0
    RunFolder(tmp_path, taken).create()
    with Claim(RunFolder(tmp_path, taken).path):
        told = in_turns((impossible, RUNS[0], breaking, taken, RUNS[3]), tmp_path, break_third_step)
    ends = {news.run: news for news in told if isinstance(news, Status)}
    assert "elsewhere" in told and taken.id not in ends
    assert ends[impossible.id].status == "failed" and "dropout" in ends[impossible.id].reason
    assert ends[breaking.id].reason == "OutOfMemoryError: no memory left for this"
    for run in (RUNS[0], RUNS[3]):
        assert left(run, tmp_path) == left(run, alone)


def test_all_save_when_they_are_stopped_and_go_on_later(tmp_path: Path, alone: Path) -> None:
    told = in_turns(RUNS, tmp_path, lambda turns: turns.stop())
    assert told == [0] * len(RUNS), "each made one step, and nothing was told of the interruption"
    for run in RUNS:
        checkpoint = RunFolder(tmp_path, run).load_checkpoint()
        assert checkpoint is not None and checkpoint["next_step"] == 1
    in_turns(RUNS, tmp_path)
    for run in RUNS:
        assert left(run, tmp_path) == left(run, alone)


def test_a_workers_runs_take_turns(tmp_path: Path, alone: Path) -> None:
    ends = [event.run for event in execute(RUNS, Settings(tmp_path, "cpu"), workers=1, per_gpu=3) if event.ended]
    assert sorted(ends, key=RUNS.index) == list(RUNS)
    for run in RUNS:
        assert left(run, tmp_path) == left(run, alone)


def test_random_states_are_swapped_in_and_out() -> None:
    torch.manual_seed(1)
    outside = torch.get_rng_state()
    mine = Surroundings(torch.device("cpu"), "fp32")
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


def test_events_name_their_run(tmp_path: Path) -> None:
    """A step is told of the run that made it, though all come through one pipe."""
    runs = (plan("ERM", steps=400), plan("ERM", trial=1, steps=2))
    seen: list[Event] = list(execute(runs, Settings(tmp_path, "cpu"), workers=1, per_gpu=2))
    assert all(event.step < event.run.steps for event in seen)
    assert any(event.step > 2 and not event.ended for event in seen)
