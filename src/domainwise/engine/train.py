"""The training loop."""

import gc
import logging
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch

from domainwise.core import files, torchrun
from domainwise.core.errors import STORAGE, StorageError, UserError
from domainwise.core.locks import RunLocked
from domainwise.core.phrasing import counted
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.engine import trackers
from domainwise.engine.devices import check_precision, pick_device
from domainwise.engine.due_evaluations import DueEvaluations
from domainwise.engine.execution import Execution
from domainwise.engine.execution.isolation import RunContext, isolated
from domainwise.engine.execution.ranks import Ranks, SharedRunFolder, join_ranks
from domainwise.engine.frozen_features import frozen_features
from domainwise.engine.interrupt import Interruption
from domainwise.engine.recorder import Recorder
from domainwise.engine.result import TrainingResult
from domainwise.engine.session import Session
from domainwise.protocol.records import Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.saved_weights import check_save, saved_weights

log = logging.getLogger(__name__)


Training = Generator[int, None, TrainingResult]
"""A training in progress: yields the number of each step after making it, and returns the result at the end."""


LARGE = 2_000_000
"""Parameters from which a network trains clearly faster on several CPU threads."""


class OutOfMemory(UserError):
    """The training did not fit into the device's memory, which is free again."""


class Interrupted(Exception):
    """The training was stopped and has saved a checkpoint; starting it again continues."""


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
    save: str = "auto",
    checkpoint_seconds: float = 30.0,
) -> TrainingResult:
    """Trains a run, or continues it from its checkpoint; returns the earlier result if it has ended.

    With `retry`, a run that failed is trained again, and one whose records are damaged starts from the beginning.
    `log_to` names trackers that also receive its records: tensorboard, wandb, mlflow. The algorithm of the result has
    the weights that `save` names (see `protocol.saved_weights`): "best", "last", "averaged", or "auto": averaged where
    the run has an average, else best.

    Writes run.json, records.jsonl, model.safetensors (the last step), best.safetensors (the step that training-domain
    validation selects) and, with an average, averaged.safetensors to `out/<run id>/`. Ctrl-C, SIGTERM or a closed
    terminal save a checkpoint and raise Interrupted; a crash loses at most `checkpoint_seconds` of work.

    Processes started by torchrun train this one model together (see `engine.execution.data_parallel`).
    """
    check_save(save, run.average)
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
                result: TrainingResult = end.value
                break
    if save != "last" and result.algorithm is not None and result.status.status == "done" and not torchrun.rank():
        result.algorithm.load_state_dict(saved_weights(RunFolder(result.folder.parent, run), save).tensors)
    return result


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
    """`train`, one step at a time: trainings interleaved in one process give the same results as alone."""
    if run.combination:
        raise UserError(f"{run} is made of {len(run.members)} runs, not trained: train those, and combine them again")
    chosen = pick_device(device)
    check_precision(run.precision, chosen)
    trackers.check(log_to)
    ranks = join_ranks(chosen)
    with ranks.all_succeed():
        data = environments or find_dataset(run.dataset).load(data_root, run.image_size)
        for domain in run.domains:
            data.split(domain, run.trial, run.held_out_of(domain))  # raises if the domain is absent or too small
        features = frozen_features(run, data, ranks.device, data_root)
    parent = ranks.on_rank_zero(partial(files.writable_folder, Path(out)))
    folder = SharedRunFolder(RunFolder(parent, run), ranks)
    folder.create()
    execution = Execution.choose(ranks, run.steps)
    available = torch.get_num_threads()  # outside of the run's context: one in a worker of a sweep

    def start(resumed: bool) -> Session:
        session = Session(run, data, ranks.device, data_root, execution=execution, resumed=resumed, features=features)
        parameters = sum(parameter.numel() for parameter in session.algorithm.parameters())
        if session.device.type == "cpu" and available > run.threads and parameters >= LARGE:
            _mention_threads(run.threads, available)
        return session

    steps = _training(folder, start, interruption, retry, log_to, checkpoint_seconds)
    try:
        result = yield from isolated(steps, RunContext(ranks.device, run.precision, run.threads))
        return replace(result, test_rows=data.test_rows_of(run.train_domains))
    except OSError as error:
        if error.errno not in STORAGE:
            raise
        raise StorageError.of(error, folder.path) from None
    except torch.OutOfMemoryError as error:
        if not ranks.is_rank_zero:
            raise  # printed by this rank, since it may be the only one
        reason = str(error).partition(". ")[0]
    gc.collect()  # only here: the error, which is gone now, referred to the run's memory
    torch.cuda.empty_cache()
    raise OutOfMemory(f"{run}: {reason}; lower batch_size, use bf16, or share the GPU with fewer runs")


@cache
def _mention_threads(threads: int, available: int) -> None:
    """Once per process: results depend on the number of threads, so that it is not taken from the machine."""
    log.warning(
        "training uses %d of %d CPU threads; threads=%d is faster, but another run: the number of threads belongs to "
        "a run's identity, because results differ in rounding",
        threads,
        available,
        available,
    )


def _training(
    folder: SharedRunFolder,
    start: Callable[[bool], Session],
    interruption: Interruption,
    retry: bool,
    log_to: Sequence[str],
    checkpoint_seconds: float,
) -> Training:
    run, ranks = folder.run, folder.ranks
    with folder.locked(), interruption:
        records, status = folder.reopen(retry)
        if status is not None and not (retry and status.status == "failed"):
            folder.release_locks()
            return TrainingResult(run, records, status, folder.path, None)
        checkpoint = folder.load_checkpoint()
        with ranks.all_succeed():
            session = start(checkpoint is not None)
        if checkpoint is not None:
            with _checkpoint_fits(folder.path):
                session.load_state(checkpoint)
        recorder = Recorder(session, folder, log_to, checkpoint_seconds)
        if checkpoint is not None:
            with _checkpoint_fits(folder.path):
                recorder.load_state(checkpoint)
        log.info("%s (%s): from step %d of %d on %s", run, run.id, session.next_step, run.steps, session.device)
        with session.execution.divided(session.algorithm), _failures_tracked(recorder):
            status = yield from _steps(session, recorder, ranks, interruption)
        status = recorder.finish(status)
    return TrainingResult(run, recorder.records, status, folder.path, session.algorithm)


@contextmanager
def _checkpoint_fits(folder: Path) -> Iterator[None]:
    """Within it, a state that is not that of the run is a UserError: its file is whole, but of something else."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        reason = f"{folder / 'checkpoint.pt'} does not fit its run ({type(error).__name__}: {error})"
        raise UserError(f"{' '.join(reason.split())[:300]}: delete it, and the run begins anew") from None


def _steps(
    session: Session, recorder: Recorder, ranks: Ranks, interruption: Interruption
) -> Generator[int, None, Status]:
    """The training loop: draw and step, evaluate and record, checkpoint, stop."""
    run, evaluations = session.run, DueEvaluations(session, ranks)
    for step in range(session.next_step, run.steps):
        session.step()
        evaluations.launch(step)
        yield step
        scores = evaluations.results(step)
        if scores is not None:
            seconds, training_loss = recorder.seconds, session.take_training_loss()
            if ranks.any(not (math.isfinite(training_loss) and scores.finite)):
                return Status(run.id, step, "diverged", f"the loss was not finite by step {step}")
            recorder.record(step, scores, seconds, training_loss)
            stale = ranks.is_rank_zero and 0 < run.early_stop <= recorder.evaluations_since_best
            if ranks.any(stale) and step < run.steps - 1:
                reason = f"stopped early: {counted(run.early_stop, 'evaluation')} without a better validation"
                return Status(run.id, step, "done", reason)
        stopping = ranks.any(interruption.requested)
        if stopping or recorder.checkpoint_due():
            recorder.save_checkpoint()
        if stopping and step < run.steps - 1:
            raise Interrupted(f"{run} stopped after step {step}")
    return Status(run.id, run.steps - 1, "done", "")


@contextmanager
def _failures_tracked(recorder: Recorder) -> Iterator[None]:
    """Within it, an exception also ends the run in its trackers: as stopped if it can be continued, else as failed."""
    session = recorder.session
    try:
        yield
    except (Interrupted, RunLocked):
        recorder.trackers.end(None)
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in STORAGE:
            recorder.trackers.end(None)
            raise
        reason = f"{type(error).__name__}: {error}"
        recorder.trackers.end(Status(session.run.id, session.next_step - 1, "failed", reason))
        raise
