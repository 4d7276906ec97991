"""Runs side by side: workers that are killed, runs that fail, sweeps that are stopped."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

import short_trainings
from domainwise.core.errors import StorageError, UserError
from domainwise.protocol.records import Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.sweeps import local
from domainwise.sweeps.events import Event, Settings, mark_failed
from domainwise.sweeps.interleaving import DiskRefused
from domainwise.sweeps.local import execute
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.status import sweep_progress
from processes import alive, all_gone, forked_workers
from short_trainings import saved_results


def settings(out: Path) -> Settings:
    return Settings(out, device="cpu", retry=True)


plan = partial(short_trainings.plan, batch_size=8, steps=150, evaluate_every=75)
RUNS = (plan("DAT"), plan("ERM"), plan("ERM", trial=1))


@pytest.fixture(autouse=True, scope="module")
def module_workers() -> Iterator[None]:
    with forked_workers():
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the runs leave when nothing happens to them."""
    out = tmp_path_factory.mktemp("undisturbed")
    list(execute(RUNS, settings(out), workers=2))
    return out


def followed(
    runs: tuple[Run, ...],
    out: Path,
    react: Callable[[Event], object] = lambda _: None,
    workers: int = 1,
    per_gpu: int | None = None,
) -> dict[Run, Status]:
    """How each run ended; `react` sees every event."""
    ends: dict[Run, Status] = {}
    for event in execute(runs, settings(out), workers, per_gpu):
        if event.ended:
            assert event.run not in ends, "a run ends once"
            ends[event.run] = event.ended
        react(event)
    assert not multiprocessing.active_children(), "no worker outlives the sweep"
    return ends


def test_a_full_disk_in_a_worker_stops_the_sweep(tmp_path: Path) -> None:
    pool = local._Pool(deque(), settings(tmp_path), size=0, runs_per_worker=1)
    pipe = Mock(recv=lambda: (RUNS[0].id, DiskRefused("No space left on device: make room")))
    with pytest.raises(StorageError, match="No space left on device: make room"):
        list(pool.receive(Mock(pipe=pipe, runs={RUNS[0].id: RUNS[0]})))


def kill_workers() -> int:
    """kill -9; how many there were."""
    children = multiprocessing.active_children()
    for child in children:
        child.kill()
        child.join()
    return len(children)


def test_every_run_is_trained_and_told_of(tmp_path: Path, undisturbed: Path) -> None:
    steps: dict[Run, list[int]] = {run: [] for run in RUNS}
    ends = followed(RUNS, tmp_path, lambda event: steps[event.run].append(event.step), workers=2)
    assert ends == {run: Status(run.id, run.steps - 1, "done", "") for run in RUNS}
    for run in RUNS:
        assert steps[run] == sorted(steps[run]) and steps[run][-1] == run.steps - 1
        assert saved_results(run, tmp_path) == saved_results(run, undisturbed), "sweeps are reproducible"
        assert RunFolder(tmp_path, run).read()[1] == ends[run]


def test_a_second_call_does_nothing_again(tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "copy"
    shutil.copytree(undisturbed, out)
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in out.rglob("*") if file.is_file()}
    monkeypatch.setattr(local, "_Worker", lambda *_: pytest.fail("a worker was started"))
    ends = followed(RUNS, out)
    assert set(ends) == set(RUNS) and {status.status for status in ends.values()} == {"done"}
    assert before == {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in out.rglob("*") if file.is_file()}


def test_nothing_to_do_is_fine(tmp_path: Path) -> None:
    assert followed((), tmp_path) == {}


def test_a_run_whose_worker_is_killed_is_continued(tmp_path: Path, undisturbed: Path) -> None:
    killed = []

    def kill_once(event: Event) -> None:
        if event.run == RUNS[0] and not killed:
            killed.append(kill_workers())

    ends = followed(RUNS[:2], tmp_path, kill_once)
    assert killed == [1]
    assert {status.status for status in ends.values()} == {"done"} and set(ends) == set(RUNS[:2])
    for run in RUNS[:2]:
        assert saved_results(run, tmp_path) == saved_results(run, undisturbed)


def test_a_run_that_always_loses_its_worker_fails_while_others_finish(tmp_path: Path, undisturbed: Path) -> None:
    deadly, harmless = RUNS[0], RUNS[1]
    deaths = []

    def kill(event: Event) -> None:
        if event.run == deadly and not event.ended and (killed := kill_workers()):
            deaths.append(killed)

    ends = followed((deadly, harmless), tmp_path, kill)
    assert len(deaths) == local.ATTEMPTS == 3
    assert ends[deadly].status == "failed" and "died 3 times" in ends[deadly].reason
    assert RunFolder(tmp_path, deadly).read()[1] == ends[deadly]
    assert saved_results(harmless, tmp_path) == saved_results(harmless, undisturbed)

    assert followed((deadly, harmless), tmp_path)[deadly].status == "done", "a later call tries again"
    assert saved_results(deadly, tmp_path) == saved_results(deadly, undisturbed)


def test_a_worker_killed_between_two_runs_is_replaced(tmp_path: Path) -> None:
    """While it waits for its next run there is nothing it could lose."""
    runs = (plan("ERM", steps=2), plan("DAT", steps=2))
    ends = followed(runs, tmp_path, lambda event: event.run == runs[0] and event.ended and kill_workers())
    assert [ends[run].status for run in runs] == ["done", "done"]


@pytest.mark.parametrize("prepared", [False, True], ids=["in its first try", "after an earlier stop"])
def test_a_run_whose_training_raises_fails_with_its_reason(tmp_path: Path, prepared: bool) -> None:
    """PyTorch refuses a dropout of 2 when the network is built."""
    impossible = replace(plan("ERM", steps=2), hparams=RUNS[1].hparams | {"dropout": 2.0})
    harmless = plan("DAT", steps=2)
    if prepared:
        RunFolder(tmp_path, impossible).create()
    ends = followed((impossible, harmless), tmp_path)
    assert ends[impossible].status == "failed" and "dropout" in ends[impossible].reason
    assert "\n" not in ends[impossible].reason
    assert RunFolder(tmp_path, impossible).read()[1] == ends[impossible]
    assert ends[harmless].status == "done"


@pytest.mark.parametrize("line", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("ended", [False, True])
def test_a_run_whose_records_are_damaged_fails_alone_and_begins_anew_if_asked(
    tmp_path: Path, ended: bool, line: int
) -> None:
    damaged, harmless = plan("ERM", steps=2), plan("DAT", steps=2)
    folder = RunFolder(tmp_path, damaged)
    folder.create()
    folder.append([Record(damaged.id, step, "scene1", "in", 0.5, 1.0, 0.1) for step in (0, 1)])
    if ended:
        folder.append([Status(damaged.id, 1, "done", "")])
    lines = folder.records_file.read_bytes().splitlines(keepends=True)
    lines[line] = b"\0" * 40 + b"\n"
    folder.records_file.write_bytes(b"".join(lines))
    for _ in range(2):
        told = execute((damaged, harmless), replace(settings(tmp_path), retry=False), workers=1)
        ends = {event.run: event.ended for event in told if event.ended}
        assert ends[damaged].status == "failed" and ends[harmless].status == "done"
        assert f"records.jsonl, line {line % len(lines) + 1}: cut short or no JSON" in ends[damaged].reason
        assert sweep_progress(tmp_path, (damaged, harmless)).failed == (ends[damaged],)
    folder.save_checkpoint({"next_step": 1})
    assert followed((damaged, harmless), tmp_path)[damaged].status == "done", "settings() ask for it"
    assert {record.step for record in folder.read()[0]} == {0, 1}
    assert folder.records_file.with_suffix(".damaged").read_bytes().startswith(b"".join(lines))


def test_a_run_can_be_marked_failed_before_it_left_anything(tmp_path: Path) -> None:
    status = mark_failed(tmp_path, RUNS[0], "two\nlines")
    assert (status.status, status.reason) == ("failed", "two lines")
    assert RunFolder(tmp_path, RUNS[0]).read() == ([], status)


def test_a_diverged_run_is_told_of_and_not_tried_again(tmp_path: Path) -> None:
    run = replace(plan("ERM", steps=4), hparams=RUNS[1].hparams | {"lr": 1e30}, evaluate_every=2)
    assert followed((run,), tmp_path)[run].status == "diverged"
    started = time.monotonic()
    assert followed((run,), tmp_path)[run].status == "diverged"
    assert time.monotonic() - started < 1


def test_closing_early_saves_and_the_next_call_finishes(tmp_path: Path, undisturbed: Path) -> None:
    stopped: set[Run] = set()
    events = execute(RUNS, settings(tmp_path), workers=2)
    for event in events:
        stopped.add(event.run)
        if len(stopped) == 2:
            break
    began = time.monotonic()
    events.close()
    assert time.monotonic() - began < 5
    assert not multiprocessing.active_children()
    saved = {run: checkpoint for run in stopped if (checkpoint := RunFolder(tmp_path, run).load_checkpoint())}
    assert saved and all(RunFolder(tmp_path, run).model_file.exists() for run in stopped - set(saved))
    first: dict[Run, int] = {}
    ends = followed(RUNS, tmp_path, lambda event: first.setdefault(event.run, event.step), workers=2)
    assert all(first[run] >= checkpoint["next_step"] for run, checkpoint in saved.items()), "continued, not begun again"
    assert {status.status for status in ends.values()} == {"done"} and set(ends) == set(RUNS)
    for run in RUNS:
        assert saved_results(run, tmp_path) == saved_results(run, undisturbed)
        assert not RunFolder(tmp_path, run).checkpoint_file.exists()


def test_closing_while_a_run_ends_does_not_wait(tmp_path: Path) -> None:
    """The signal comes after the last step, when there is nothing left to interrupt; the worker must still go."""
    run = plan_run("BackgroundDigits", "DAT", [0], hparams={"batch_size": 1000}, steps=1)
    events = execute([run], settings(tmp_path), workers=1)
    assert next(events).ended is None
    began = time.monotonic()
    events.close()
    assert time.monotonic() - began < 5
    assert not multiprocessing.active_children()


ORPHANING = """
import multiprocessing, sys
from pathlib import Path
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.events import Settings
from domainwise.sweeps.local import execute
from domainwise.sweeps.status import sweep_progress
if __name__ == "__main__":
    run = plan_run("BackgroundDigits", "ERM", [0], hparams={"batch_size": 8}, steps=100_000, evaluate_every=50_000)
    for event in execute([run], Settings(Path(sys.argv[1]), "cpu"), workers=1):
        print(*[child.pid for child in multiprocessing.active_children()], flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_workers_stop_by_themselves_when_their_driver_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(ORPHANING)
    driver = subprocess.Popen([sys.executable, script, tmp_path], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    workers = [int(word) for word in driver.stdout.readline().split()]
    assert len(workers) == 1 and alive(workers[0])
    driver.kill()
    driver.wait()
    driver.stdout.close()
    try:
        assert all_gone(workers)
    finally:
        if alive(workers[0]):
            os.kill(workers[0], signal.SIGKILL)


def test_an_unwritable_folder_is_an_error_before_any_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(local, "_Worker", lambda *_: pytest.fail("a worker was started"))
    with pytest.raises(UserError, match="cannot write"):
        followed(RUNS, tmp_path / "file" / "out")


def test_missing_data_is_an_error_before_any_worker_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_Worker", lambda *_: pytest.fail("a worker was started"))
    with pytest.raises(UserError, match="MNIST not found"):
        list(execute([plan_run("ColoredMNIST", "ERM", [0])], Settings(tmp_path / "out", data_root=tmp_path)))


def test_a_worker_has_time_to_save_every_run_it_holds(tmp_path: Path) -> None:
    pool, waited = local._Pool(deque(), settings(tmp_path), size=0, runs_per_worker=8), []
    process = Mock(join=lambda seconds=None: waited.append(seconds))
    pool.workers = [Mock(process=process, runs={run.id: run for run in RUNS}), Mock(process=process, runs={})]
    pool.close()
    assert waited[::2] == pytest.approx([local.GRACE_SECONDS * len(RUNS)] * 2, abs=1)
