"""Stopping a training, however rudely, changes nothing."""

import os
import random
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from domainwise.algorithms import ALGORITHMS
from domainwise.engine.interrupt import SIGNALS, STOPPING, signals_as_keyboard_interrupt
from domainwise.engine.train import Interrupted
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from processes import quick_context
from short_trainings import EVERY, STEPS, at_step, interrupt, plan, saved_results, trained


@pytest.mark.parametrize(
    "run",
    [
        *(pytest.param(plan(name), id=name) for name in sorted(ALGORITHMS)),
        pytest.param(plan("DAT", dropout=0.5), id="DAT with dropout"),
        pytest.param(plan("IRM", dropout=0.5, anneal=4), id="IRM with dropout, before its anneal step"),
        pytest.param(plan("IRM", anneal=2), id="IRM after its anneal step"),
        pytest.param(plan("EQRM", anneal=2, anneal_lr=0.1), id="EQRM after its anneal step"),
        pytest.param(plan("TRM", anneal=2), id="TRM after its anneal step"),
        pytest.param(plan("DAT", norm="linf", weight_decay=0.1), id="DAT, linf, weight decay"),
    ],
)
def test_an_interrupted_run_continues_bit_for_bit(tmp_path: Path, run: Run) -> None:
    trained(run, tmp_path / "whole")
    seen: list[int] = []
    with pytest.raises(Interrupted, match="step 3"):
        trained(run, tmp_path / "parts", progress=at_step(3, interrupt))
    files = {file.name for file in (tmp_path / "parts" / run.id).iterdir() if not file.name.startswith("claim.")}
    assert files == {"run.json", "records.jsonl", "checkpoint.pt"}
    trained(run, tmp_path / "parts", progress=seen.append)
    assert seen == list(range(4, STEPS)), "continues, does not start again"
    assert saved_results(run, tmp_path / "parts") == saved_results(run, tmp_path / "whole")
    assert not (tmp_path / "parts" / run.id / "checkpoint.pt").exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_all_signals_stop_a_run_and_handlers_are_put_back(tmp_path: Path, number: signal.Signals) -> None:
    before = [signal.getsignal(s) for s in SIGNALS]
    with pytest.raises(Interrupted):
        trained(plan(), tmp_path, progress=at_step(0, lambda: signal.raise_signal(number)))
    assert [signal.getsignal(s) for s in SIGNALS] == before
    trained(plan(), tmp_path)
    assert [signal.getsignal(s) for s in SIGNALS] == before


def test_a_hangup_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As after nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_keyboard_interrupt():
            outcome = trained(plan(), tmp_path, progress=at_step(1, lambda: signal.raise_signal(signal.SIGHUP)))
        assert outcome.status.status == "done" and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", STOPPING)
def test_around_a_training_signals_are_ctrl_c_once(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), signals_as_keyboard_interrupt():
        try:
            signal.raise_signal(number)
        finally:
            for later in STOPPING:
                signal.raise_signal(later)  # while it saves
    assert [signal.getsignal(s) for s in STOPPING] == [signal.SIG_DFL, signal.SIG_DFL]


def test_a_second_interrupt_is_not_held_back(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(plan(), tmp_path, progress=at_step(1, lambda: (interrupt(), interrupt())))
    trained(plan(), tmp_path)
    trained(plan(), tmp_path / "whole")
    assert saved_results(plan(), tmp_path) == saved_results(plan(), tmp_path / "whole")


def test_an_interrupt_in_the_last_step_lets_the_run_end(tmp_path: Path) -> None:
    outcome = trained(plan(), tmp_path, progress=at_step(STEPS - 1, interrupt))
    assert outcome.status.status == "done"
    files = {"run.json", "records.jsonl", "model.safetensors", "best.safetensors"}
    assert {file.name for file in outcome.folder.iterdir()} == files


class Crash(BaseException):
    """Nothing catches it: as good as a power failure, since everything that is written is flushed."""


@pytest.mark.parametrize("before", [False, True], ids=["just after", "just before"])
@pytest.mark.parametrize(
    ("method", "call"), [("append", 2), ("append", -1), ("save_checkpoint", 2), ("rewind", 0), ("finish", 0)]
)
def test_a_crash_at_any_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, call: int, before: bool
) -> None:
    run, calls, original = plan(), [], getattr(RunFolder, method)
    trained(run, tmp_path / "whole")
    fatal = call if call >= 0 else len(range(0, STEPS, EVERY)) + 1  # the last line: the status, after the model

    def crashing(self: RunFolder, *arguments: Any) -> Any:
        calls.append(method)
        if before and len(calls) == fatal + 1:
            raise Crash
        result = original(self, *arguments)
        if len(calls) == fatal + 1:
            raise Crash
        return result

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(RunFolder, method, crashing)
        trained(run, tmp_path / "parts", checkpoint_seconds=0)
    trained(run, tmp_path / "parts")
    assert saved_results(run, tmp_path / "parts") == saved_results(run, tmp_path / "whole")


def train_reporting(run: Run, out: Path, steps: Connection) -> None:
    """A process of its own: tells each step, saves a checkpoint after it."""
    torch.set_num_threads(1)
    try:
        trained(run, out, checkpoint_seconds=0, progress=steps.send)
    except Interrupted:
        sys.exit(130)


def stop_after(run: Run, out: Path, step: int, number: signal.Signals) -> tuple[int | None, list[int]]:
    """Trains in another process, sends it the signal when it tells this step; its exit status and the steps told."""
    context = quick_context()
    steps, theirs = context.Pipe(duplex=False)
    process = context.Process(target=train_reporting, args=(run, out, theirs))
    process.start()
    theirs.close()
    seen: list[int] = []
    assert process.pid is not None
    with suppress(EOFError):
        while True:
            seen.append(steps.recv())
            if seen[-1] == max(step, seen[0]):
                os.kill(process.pid, number)
    process.join()
    return process.exitcode, seen


def test_killed_again_and_again_and_still_the_same(tmp_path: Path) -> None:
    """kill -9 at random moments; a checkpoint after every step."""
    run = plan(steps=60, evaluate_every=5, dropout=0.2)
    trained(run, tmp_path / "whole")
    moments, starts = sorted(random.sample(range(2, 45), 5)), []
    for step in moments:
        status, seen = stop_after(run, tmp_path / "parts", step, signal.SIGKILL)
        starts.append(seen[0])
        if status != -signal.SIGKILL:
            break  # on a busy machine the run may end before the signal comes
    assert starts[0] == 0 and len(starts) > 1
    assert starts == sorted(starts) and starts[1] > 0, "each continued from a checkpoint"
    trained(run, tmp_path / "parts")
    assert saved_results(run, tmp_path / "parts") == saved_results(run, tmp_path / "whole"), f"killed at {moments}"
    assert not RunFolder(tmp_path / "parts", run).checkpoint_file.exists()


def test_a_process_that_gets_sigint_saves_and_continues(tmp_path: Path) -> None:
    run = plan(steps=200, evaluate_every=50)
    trained(run, tmp_path / "whole")
    status, seen = stop_after(run, tmp_path / "parts", random.randrange(10), signal.SIGINT)
    assert status == 130 and seen[-1] < 199
    state = RunFolder(tmp_path / "parts", run).load_checkpoint()
    assert state is not None and state["next_step"] == seen[-1] + 1, "not a step is lost"
    trained(run, tmp_path / "parts")
    assert saved_results(run, tmp_path / "parts") == saved_results(run, tmp_path / "whole")
