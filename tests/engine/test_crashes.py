"""Sweeps that survive anything: drivers and workers killed at random moments, two drivers on one folder."""

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from domainwise.data import batches
from domainwise.protocol.run_folder import RunFolder
from domainwise.sweeps import local
from domainwise.sweeps.events import Settings
from domainwise.sweeps.local import execute
from domainwise.sweeps.plan import plan_sweep
from domainwise.sweeps.plan_run import plan_run
from processes import alive, quick_context, quick_server, share_server

PLAN = plan_sweep(
    "BackgroundDigits", ("ERM", "DAT"), draws=1, trials=1, steps=21, evaluate_every=10, hparams={"batch_size": 4}
)
Results = dict[str, tuple[list[tuple[object, ...]], str, bytes]]


def drive(out: Path, pipe: "Connection[list[int], None]", server: str) -> None:
    """A sweep's driver, which tells the process numbers of its workers at every event."""
    share_server(server)
    context = quick_context()
    multiprocessing.get_context = lambda _: context
    local.ATTEMPTS = 100  # one run may be unlucky more than twice
    for event in execute(PLAN.runs(), Settings(out), workers=2):
        if not event.earlier:
            pipe.send([child.pid for child in multiprocessing.active_children() if child.pid])


def start(out: Path) -> tuple[BaseProcess, "Connection[None, list[int]]"]:
    context = quick_context()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=drive, args=(out, theirs, quick_server()))
    process.start()
    theirs.close()
    return process, ours


def finish(out: Path) -> None:
    process, pipe = start(out)
    while pipe.poll(120):
        try:
            pipe.recv()
        except EOFError:
            break
    process.join(60)
    assert process.exitcode == 0


def results(out: Path) -> Results:
    """All that counts of every run: its records without times, how it ended, its model."""
    found = {}
    for run in PLAN.runs():
        folder = RunFolder(out, run)
        records, status = folder.read()
        assert status is not None
        rows = [(r.step, r.domain, r.split, r.accuracy, r.loss) for r in records]
        found[run.id] = (rows, status.status, folder.model_file.read_bytes())
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    out = tmp_path_factory.mktemp("undisturbed")
    finish(out)
    return results(out)


def follow_and_kill(out: Path, victim: str, luck: random.Random) -> int:
    """One sweep in which the driver, or every now and then a worker, is killed; how many were."""
    process, pipe = start(out)
    patience, kills = luck.randrange(1, 5), 0
    try:
        while True:
            workers = [pid for pid in pipe.recv() if alive(pid)]
            patience -= 1
            if patience == 0:
                time.sleep(0.2 * luck.random())
                target = process.pid if victim == "driver" else luck.choice(workers) if workers else None
                if target and alive(target):
                    os.kill(target, signal.SIGKILL)
                    kills += 1
                patience = luck.randrange(2, 5)
    except EOFError:
        process.join(60)
    return kills


@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("victim", ["driver", "worker"])
def test_killed_several_times_and_nothing_is_lost_or_double(
    victim: str, times: int, undisturbed: Results, tmp_path: Path
) -> None:
    luck, kills = random.Random(7), 0
    while kills < times:
        kills += follow_and_kill(tmp_path, victim, luck)
        ended = [run for run in PLAN.runs() if RunFolder(tmp_path, run).status()]
        if len(ended) > len(PLAN.runs()) // 2:
            for run in ended[::2]:  # so that there is enough left to kill
                RunFolder(tmp_path, run).records_file.unlink()
    finish(tmp_path)
    assert results(tmp_path) == undisturbed


def test_two_drivers_share_a_folder_and_no_run_is_done_twice(undisturbed: Results, tmp_path: Path) -> None:
    drivers = [start(tmp_path) for _ in range(2)]
    for process, pipe in drivers:
        ends = 0
        while pipe.poll(120):
            try:
                pipe.recv()
                ends += 1
            except EOFError:
                break
        process.join(60)
        assert process.exitcode == 0 and ends, "each does a part, and waits until all runs have ended"
    assert results(tmp_path) == undisturbed


def test_a_run_out_of_memory_is_marked_and_the_sweep_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = quick_context()
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
    monkeypatch.setattr(batches, "available_memory", lambda: 2**24)
    hopeless = plan_run("BackgroundDigits", "ERM", [0], hparams={"batch_size": 10**6}, steps=2)
    fine = plan_run("BackgroundDigits", "ERM", [0], hparams={"batch_size": 4}, steps=2)
    ends = {e.run: e.ended for e in execute([hopeless, fine], Settings(tmp_path), workers=1) if e.ended}
    assert ends[fine].status == "done"
    assert ends[hopeless].status == "failed" and "memory" in ends[hopeless].reason
    assert "\n" not in ends[hopeless].reason
