"""Locks on runs: never two processes at once, and never none for long."""

import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
import torch

from domainwise.core import locks
from domainwise.core.errors import UserError
from domainwise.core.locks import STALE_SECONDS, RunLock, RunLocked, lock_holder, machine_id, process_start_time
from domainwise.data.environments import Environments
from domainwise.engine.session import Session
from domainwise.engine.train import Interrupted, train
from domainwise.protocol.records import Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan_run import plan_run
from processes import quick_context

RACERS, ROUNDS = 8, 20


def leave(folder: Path, owner: object, *, number: int = 1, silent: float = 0.0) -> Path:
    """A lock file of another process, without a heartbeat for so many seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"claim.{number}"
    path.write_bytes(owner if isinstance(owner, bytes) else json.dumps(owner).encode())
    os.utime(path, (time.time() - silent,) * 2)
    return path


def owner(pid: int, **changes: Any) -> dict[str, Any]:
    return {"machine": machine_id(), "pid": pid, "birth": process_start_time(pid), "token": "another"} | changes


ELSEWHERE = {
    "machine": "elsewhere/boot",
    "pid": os.getpid(),
    "birth": process_start_time(os.getpid()),
    "token": "another",
}


def is_free(folder: Path) -> bool:
    """Whether the lock can be taken, by the two ways of asking; leaves it taken and released if so."""
    seen = lock_holder(folder) is None
    try:
        with RunLock(folder):
            taken = True
    except RunLocked:
        taken = False
    assert seen == taken
    return taken


@pytest.fixture
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """Another living process of this machine."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# one at a time


def test_a_lock_excludes_others_until_its_end(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        assert lock_holder(tmp_path) == lock.path and not lock.taken_over()
        with pytest.raises(RunLocked, match=re.escape(tmp_path.name)), RunLock(tmp_path):
            pytest.fail("two at once")
        assert lock_holder(tmp_path) == lock.path, "a vain attempt changes nothing"
    assert lock_holder(tmp_path) is None and is_free(tmp_path)


def test_a_lock_is_released_after_an_exception(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), RunLock(tmp_path):
        raise KeyboardInterrupt
    assert is_free(tmp_path)


def test_folders_are_locked_each_on_its_own(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    with RunLock(tmp_path / "a"), RunLock(tmp_path / "b"):
        pass


def test_numbers_are_never_reused_and_the_highest_holds(tmp_path: Path, neighbour: subprocess.Popen[bytes]) -> None:
    paths = []
    for _ in range(11):
        with RunLock(tmp_path) as lock:
            paths.append(lock.path.name)
    assert paths == [f"claim.{number}" for number in range(1, 12)]
    last = leave(tmp_path, owner(neighbour.pid), number=12)
    assert lock_holder(tmp_path) == last and not is_free(tmp_path), "12 is more than 9"


def test_other_files_are_no_locks_and_nothing_is_left_behind(tmp_path: Path) -> None:
    for name in ("claim.txt", "claim.", "claim", "records.jsonl"):
        (tmp_path / name).write_text("{}")
    before = set(names(tmp_path))
    assert lock_holder(tmp_path) is None and is_free(tmp_path)
    assert set(names(tmp_path)) == before | {"claim.1"}


def test_releasing_all_removes_all_locks_and_nothing_else(tmp_path: Path) -> None:
    leave(tmp_path, b"released", number=7)
    (tmp_path / "records.jsonl").touch()
    with RunLock(tmp_path) as lock:
        lock.release_all()
    assert names(tmp_path) == ["records.jsonl"]


def test_a_lock_made_by_another_after_releasing_all_is_not_released(tmp_path: Path) -> None:
    """A failed run: one driver leaves it alone and removes its locks; at once another, with --retry, locks it."""
    with RunLock(tmp_path) as lock:
        lock.release_all()
        leave(tmp_path, ELSEWHERE)
    assert not is_free(tmp_path)


# the dead


def test_a_lock_falls_with_its_process_at_once(tmp_path: Path, neighbour: subprocess.Popen[bytes]) -> None:
    leave(tmp_path, owner(neighbour.pid))
    assert not is_free(tmp_path)
    neighbour.kill()
    os.waitid(os.P_PID, neighbour.pid, os.WEXITED | os.WNOWAIT)
    assert process_start_time(neighbour.pid) is None, "dead, though nobody has asked for its exit status"
    assert is_free(tmp_path)
    neighbour.wait()
    assert is_free(tmp_path)


def lock_and_die(folder: Path, how: str) -> None:
    RunLock(folder).__enter__()
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)


@pytest.mark.parametrize("how", ["killed", "exits"])
def test_a_process_that_dies_while_it_holds_is_followed_at_once(tmp_path: Path, how: str) -> None:
    process = quick_context().Process(target=lock_and_die, args=(tmp_path, how))
    process.start()
    process.join()
    assert names(tmp_path) == ["claim.1"] and json.loads((tmp_path / "claim.1").read_text())["pid"] == process.pid
    assert is_free(tmp_path)


def test_a_recycled_process_number_does_not_hold(tmp_path: Path, neighbour: subprocess.Popen[bytes]) -> None:
    leave(tmp_path, owner(neighbour.pid, birth="1"))
    assert is_free(tmp_path)


def test_a_living_process_of_this_machine_holds_however_long_it_is_silent(
    tmp_path: Path, neighbour: subprocess.Popen[bytes]
) -> None:
    leave(tmp_path, owner(neighbour.pid), silent=10 * STALE_SECONDS)
    assert not is_free(tmp_path)


def test_a_restarted_machine_is_another(tmp_path: Path) -> None:
    """Same name, same process id and even start time, but another boot: judged by its heartbeat."""
    leave(tmp_path, owner(os.getpid(), machine=machine_id() + "x"), silent=2 * STALE_SECONDS)
    assert is_free(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="containers are told apart by /proc")
def test_a_container_of_the_same_name_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes have numbers that mean nothing here: judged by their heartbeats."""
    with monkeypatch.context() as there:
        there.setattr(Path, "readlink", lambda _: Path("pid:[1]"))
        theirs = machine_id.__wrapped__()
    leave(tmp_path, owner(os.getpid(), machine=theirs, birth="1"))
    assert not is_free(tmp_path)


UNREADABLE = {
    "empty": b"",
    "cut": b'{"machine": "elsewhere", "pid": 1',
    "text": b"garbage",
    "zeros": b"\0" * 64,
    "bytes": b"\xff\xfe",
    "number": b"1",
    "null": b"null",
    "no owner": b"{}",
}


@pytest.mark.parametrize("text", [ELSEWHERE, *UNREADABLE.values()], ids=["elsewhere", *UNREADABLE])
@pytest.mark.parametrize(
    ("silent", "free"), [(0, False), (STALE_SECONDS - 20, False), (-100, False), (STALE_SECONDS + 20, True)]
)
def test_locks_of_other_machines_and_unreadable_ones_hold_while_they_are_fresh(
    tmp_path: Path, text: object, silent: float, free: bool
) -> None:
    leave(tmp_path, text, silent=silent)
    assert is_free(tmp_path) == free


def test_a_lock_dated_in_the_future_does_not_hold_for_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    leave(tmp_path / "skewed", ELSEWHERE, silent=-60)
    assert not is_free(tmp_path / "skewed"), "as far as clocks differ"
    leave(tmp_path / "future", ELSEWHERE, silent=-86_400)
    assert is_free(tmp_path / "future") and "is dated in the future" in caplog.text


def test_a_disk_too_full_for_a_lock_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(json, "dump", full)
        RunLock(tmp_path).__enter__()
    assert is_free(tmp_path)


def test_a_holder_is_heard_of_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.01)

    def beats(path: Path, patience: float) -> bool:
        os.utime(path, (0, 0))
        deadline = time.monotonic() + patience
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        return path.stat().st_mtime > 0

    with RunLock(tmp_path) as lock:
        assert beats(lock.path, 10) and beats(lock.path, 10)
        with monkeypatch.context() as disturbed:
            errors: list[int] = []

            def fail(_: Path) -> None:
                errors.append(errno.ESTALE)
                raise OSError(errno.ESTALE, "Stale file handle")

            disturbed.setattr(os, "utime", fail)
            while not errors:
                time.sleep(0.01)
        assert beats(lock.path, 10), "also after its folder was out of reach"
    time.sleep(0.05)
    assert not beats(lock.path, 0.1)


def test_a_heart_stops_when_its_lock_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.01)
    heart = threading.Thread(target=RunLock(tmp_path / "gone")._beat, daemon=True)
    heart.start()
    heart.join(10)
    assert not heart.is_alive()


def test_a_holder_taken_for_dead_sees_it_and_leaves_the_other_alone(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        assert not lock.taken_over()
        other = leave(tmp_path, ELSEWHERE, number=2)
        assert lock.taken_over()
    assert lock_holder(tmp_path) == other and not is_free(tmp_path)


def test_a_lock_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """Another took over, ended the run and removed all locks."""
    with RunLock(tmp_path) as lock:
        lock.path.unlink()
    assert not names(tmp_path)


def test_a_folder_that_is_gone_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="was deleted while"), RunLock(tmp_path / "run") as lock:
        shutil.rmtree(tmp_path / "run")
        lock.ensure_owned()


def test_a_folder_that_may_only_be_read_tells_who_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = leave(tmp_path, ELSEWHERE)

    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    assert lock_holder(tmp_path) == other


# races


def race(folder: Path, start: Barrier, end: Barrier, winners: "Queue[tuple[int, str]]") -> None:
    for number in range(ROUNDS):
        start.wait(60)
        try:
            with RunLock(folder / str(number)) as lock:
                winners.put((number, lock.path.name))
                end.wait(60)
        except RunLocked:
            end.wait(60)


def test_of_many_that_race_exactly_one_wins(tmp_path: Path, neighbour: subprocess.Popen[bytes]) -> None:
    """For a new folder, for one that was released, and for one whose holder is dead."""
    for number in range(ROUNDS):
        (tmp_path / str(number)).mkdir()
        if number % 3:
            leave(tmp_path / str(number), b"released" if number % 3 == 1 else owner(neighbour.pid, birth="1"))
    context = quick_context()
    barriers = context.Barrier(RACERS), context.Barrier(RACERS)
    winners: Queue[tuple[int, str]] = context.Queue()
    racers = [context.Process(target=race, args=(tmp_path, *barriers, winners)) for _ in range(RACERS)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(120)
    assert [racer.exitcode for racer in racers] == [0] * RACERS
    won = sorted(winners.get(timeout=10) for _ in range(ROUNDS))
    assert won == [(number, "claim.2" if number % 3 else "claim.1") for number in range(ROUNDS)]
    assert winners.empty()


# training


def data() -> Environments:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4, 20, 1, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.arange(20) % 2
    return Environments.from_arrays({f"scene{i + 1}": (images[i], labels) for i in range(4)})


def a_run(**changes: Any) -> Run:
    facts = {"hparams": {"batch_size": 2}, "network": "mlp", "steps": 4, "evaluate_every": 1, **changes}
    return plan_run("BackgroundDigits", "ERM", "scene1", **facts)


def test_a_run_that_somebody_works_on_is_left_alone(tmp_path: Path, neighbour: subprocess.Popen[bytes]) -> None:
    run = a_run()
    folder = RunFolder(tmp_path, run)
    folder.create()
    folder.append([Record(run.id, 0, "scene1", "in", 0.5, 1.0, 0.1), Record(run.id, 3, "scene1", "in", 0.5, 1.0, 0.1)])
    folder.checkpoint_file.write_bytes(b"theirs")
    leave(folder.path, owner(neighbour.pid))
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    with pytest.raises(RunLocked):
        train(run, tmp_path, device="cpu", environments=data())
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before


def test_a_run_that_has_ended_leaves_no_locks(tmp_path: Path) -> None:
    run = a_run()
    folder = RunFolder(tmp_path, run)
    for _ in range(2):
        assert train(run, tmp_path, device="cpu", environments=data()).status.status == "done"
        assert names(folder.path) == ["best.safetensors", "model.safetensors", "records.jsonl", "run.json"]


@pytest.mark.parametrize("state", ["done", "diverged", "failed"])
def test_a_run_ended_elsewhere_leaves_no_locks(tmp_path: Path, state: Any) -> None:
    run = a_run()
    folder = RunFolder(tmp_path, run)
    folder.create()
    folder.append([Status(run.id, 3, state, "")])
    leave(folder.path, b"released", number=3)
    assert train(run, tmp_path, device="cpu", environments=data(), retry=False).status.status == state
    assert names(folder.path) == ["records.jsonl", "run.json"]


@pytest.mark.parametrize("kind", ["plain", "tracked", "diverging", "interrupted"])
@pytest.mark.parametrize("step", [1, 3], ids=["in the middle", "at the end"])
def test_a_training_taken_for_dead_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, step: int
) -> None:
    run = a_run(track=["penalties"] if kind == "tracked" else [], evaluate_every=4 if kind == "interrupted" else 1)
    folder = RunFolder(tmp_path, run)
    written: dict[str, bytes] = {}

    def overtake(at: int) -> None:
        if at == step:
            leave(folder.path, ELSEWHERE, number=2)
            written.update({path.name: path.read_bytes() for path in folder.path.iterdir()})
            if kind == "diverging":
                monkeypatch.setattr(Session, "take_training_loss", lambda _: math.nan)
            if kind == "interrupted":
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises((RunLocked, Interrupted)):
        train(run, tmp_path, device="cpu", environments=data(), progress=overtake, checkpoint_seconds=0.0)
    after = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    assert after == written | {"claim.1": b"released"} and lock_holder(folder.path) == folder.path / "claim.2"
