"""The training loop."""

import gc
import logging
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from domainwise.algorithms.base import Algorithm
from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.locks import RunLock, RunLocked
from domainwise.core.provenance import provenance
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.engine import trackers
from domainwise.engine.devices import check_precision, pick_device
from domainwise.engine.evaluation import Evaluator, parts_to_judge
from domainwise.engine.execution.capture import changing
from domainwise.engine.execution.data_parallel import spread_session
from domainwise.engine.execution.isolation import RunContext, apart
from domainwise.engine.execution.ranks import Crew, LeadersClaim, SharedFolder, join
from domainwise.engine.interrupt import Interruption
from domainwise.engine.penalties import track_penalties
from domainwise.engine.session import Session
from domainwise.engine.trackers import Trackers
from domainwise.protocol.records import Record, RunFolder, Status
from domainwise.protocol.runs import Run

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What a training left: its records, how it ended, and the trained algorithm (None if it had ended before)."""

    run: Run
    records: list[Record]
    status: Status
    folder: Path
    algorithm: Algorithm | None


Training = Generator[int, None, Outcome]
"""A training in progress: gives the number of each step it has made, and its outcome at the end."""


class OutOfMemory(UserError):
    """The training did not fit the device; its memory is free again."""


class Interrupted(Exception):
    """The training was asked to stop and has saved a checkpoint; calling it again continues."""


def train(
    run: Run,
    out: Path | str = "runs",
    *,
    device: str = "auto",
    data_root: Path | None = None,
    environments: Environments | None = None,
    retry: bool = True,
    progress: Callable[[int], None] = lambda _: None,
    log_to: Sequence[str] = (),
    checkpoint_seconds: float = 30.0,
) -> Outcome:
    """Trains a run, or continues it from its checkpoint, or returns what it left if it had ended.

    A run that failed before is tried again if `retry`, and one whose records are damaged begins anew. `log_to` names
    trackers that hear of it: tensorboard, wandb, mlflow.

    Leaves `out/<run id>/` with run.json, records.jsonl and model.safetensors. Ctrl-C (or SIGTERM) saves a checkpoint
    and raises Interrupted; a crash loses at most `checkpoint_seconds` of work, never a record that counts.

    In processes started by torchrun all of them work on this one training (see `engine.spread`).
    """
    steps = training(
        run,
        out,
        Interruption(),
        device=device,
        data_root=data_root,
        environments=environments,
        retry=retry,
        log_to=log_to,
        checkpoint_seconds=checkpoint_seconds,
    )
    with closing(steps):
        while True:
            try:
                progress(next(steps))
            except StopIteration as end:
                return end.value


def training(
    run: Run,
    out: Path | str,
    interruption: Interruption,
    *,
    device: str = "auto",
    data_root: Path | None = None,
    environments: Environments | None = None,
    retry: bool = True,
    log_to: Sequence[str] = (),
    checkpoint_seconds: float = 30.0,
) -> Training:
    """What `train` does, one step at a time: several may take turns in one process, each as if it were alone."""
    place = pick_device(device)
    check_precision(run.precision, place)
    trackers.check(log_to)
    crew = join(place)
    with crew.unanimous():
        data = environments or find_dataset(run.dataset).load(data_root, run.image_size)
        for domain in run.domains:
            data.held_out_count(domain, run.held_out_of(domain))
    folder = SharedFolder(crew.led(partial(files.writable_folder, Path(out))), run, crew)
    folder.create()
    start = partial(Session, run, data, crew.device, data_root)
    steps = _training(folder, start, crew, interruption, retry, log_to, checkpoint_seconds)
    try:
        return (yield from apart(steps, RunContext(crew.device, run.precision)))
    except torch.OutOfMemoryError as error:
        if not crew.leads:
            raise  # said by this rank itself, since it may be the only one
        reason = str(error).partition(". ")[0]
    gc.collect()  # only here, where the error is gone, and with it all that held on to the run's memory
    torch.cuda.empty_cache()
    raise OutOfMemory(f"{run}: {reason}; lower batch_size, use bf16, or share the GPU with fewer runs (--per-gpu)")


def _training(
    folder: RunFolder,
    start: Callable[[], Session],
    crew: Crew,
    interruption: Interruption,
    retry: bool,
    log_to: Sequence[str],
    checkpoint_seconds: float,
) -> Training:
    run = folder.run
    with (RunLock if crew.leads else LeadersClaim)(folder.path) as claim, interruption:
        records, status = folder.reopen(retry)
        if status is not None and not (retry and status.status == "failed"):
            claim.forget()
            return Outcome(run, records, status, folder.path, None)
        with crew.unanimous():
            session = start()
            spread_session(session, crew)
        checkpoint = folder.load_checkpoint()
        if checkpoint is not None:
            session.load_state(checkpoint)
        records = folder.rewind(session.next_step - 1)
        log.info("%s (%s): from step %d of %d on %s", run, run.id, session.next_step, run.steps, session.device)
        parts = parts_to_judge(run, session.environments)
        judge = Evaluator(session.algorithm, session.environments, parts, run.train_domains)
        judge.capture &= crew.size == 1
        listeners = Trackers(log_to if crew.leads else (), run, folder.path)
        started, saved = time.monotonic() - session.seconds, time.monotonic()

        status = Status(run.id, run.steps - 1, "done", "")
        with _heard(listeners, session):
            for step in range(session.next_step, run.steps):
                session.step()
                judged = run.evaluated_at(step)
                if judged:
                    crew.follow(changing(session.algorithm))
                    with session.sharing:
                        judge.ask()
                yield step
                if judged:
                    session.seconds = time.monotonic() - started
                    scores = judge.answers()
                    if crew.any(session.diverged() or not all(math.isfinite(loss) for _, loss in scores.values())):
                        status = Status(run.id, step, "diverged", f"the loss was not finite by step {step}")
                        break
                    rows = [
                        Record(run.id, step, *part, *score, round(session.seconds, 3)) for part, score in scores.items()
                    ]
                    claim.ensure_owned()
                    if "penalties" in run.track:
                        folder.append_penalties(track_penalties(session, step))
                    folder.append(rows)
                    listeners.record(step, rows)
                    log.debug("%s: judged after step %d", run.id, step)
                    records += rows
                stopping = crew.any(interruption.requested)
                if stopping or time.monotonic() - saved > checkpoint_seconds:
                    session.seconds = time.monotonic() - started
                    claim.ensure_owned()
                    folder.save_checkpoint(session.state())
                    saved = time.monotonic()
                if stopping and step < run.steps - 1:
                    raise Interrupted(f"{run} stopped after step {step}")
        claim.ensure_owned()
        status = replace(status, **provenance(session.device))
        folder.finish(status, session.algorithm.state_dict())
        listeners.end(status)
        log.info("%s (%s): %s", run, run.id, f"{status.status} {status.reason}".strip())
        claim.forget()
    return Outcome(run, records, status, folder.path, session.algorithm)


@contextmanager
def _heard(listeners: Trackers, session: Session) -> Iterator[None]:
    """Within it, trackers hear of a failure too, and are let go where the training stops."""
    try:
        yield
    except (Interrupted, RunLocked):
        listeners.end(None)
        raise
    except Exception as error:
        listeners.end(Status(session.run.id, session.next_step - 1, "failed", f"{type(error).__name__}: {error}"))
        raise
