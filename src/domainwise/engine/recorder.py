"""Records, checkpoints and the status of one training, on disk and in trackers."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from domainwise.core.provenance import provenance
from domainwise.engine.best import BestWeights
from domainwise.engine.due_evaluations import StepScores
from domainwise.engine.execution.ranks import SharedRunFolder
from domainwise.engine.penalties import track_penalties
from domainwise.engine.session import Session
from domainwise.engine.trackers import Trackers
from domainwise.protocol.averages import AveragedSteps
from domainwise.protocol.records import Record, Status

log = logging.getLogger(__name__)


class Recorder:
    """Writes the records, checkpoints, models and status of one training."""

    def __init__(
        self, session: Session, folder: SharedRunFolder, log_to: Sequence[str], checkpoint_seconds: float
    ) -> None:
        self.session, self.folder, self.checkpoint_seconds = session, folder, checkpoint_seconds
        self.records = folder.rewind(session.next_step - 1)
        self.best = BestWeights(session.run, session.algorithm)
        self.best_averaged: BestWeights | None = None
        if session.average is not None:
            self.best_averaged = BestWeights(session.run, session.algorithm, session.average.state_dict)
        self.trackers = Trackers(log_to if folder.ranks.is_rank_zero else (), session.run, folder.path)
        self._started = self._saved = time.monotonic()

    def load_state(self, checkpoint: dict[str, Any]) -> None:
        self._started -= float(checkpoint["seconds"])
        self.best.load_state(checkpoint["best"])
        if self.best_averaged is not None:
            self.best_averaged.load_state(checkpoint["best_averaged"])

    @property
    def seconds(self) -> float:
        """The duration of the training, including what was done before it was interrupted."""
        return time.monotonic() - self._started

    def record(self, step: int, scores: StepScores, seconds: float, training_loss: float) -> None:
        """Writes one record per split and kind of weights, and the penalties if the run tracks them."""
        run, rounded = self.session.run, round(seconds, 3)
        last = [Record.of(run.id, step, split, score, rounded, training_loss) for split, score in scores.last.items()]
        averaged = [
            Record.of(run.id, step, split, score, rounded, average=run.average)
            for split, score in (scores.averaged or {}).items()
        ]
        rows = [*last, *averaged]
        if "penalties" in run.track:
            self.folder.append_penalties(track_penalties(self.session, step))
        self.folder.append(rows)
        self.trackers.record(step, rows)
        log.debug("%s: evaluated after step %d", run.id, step)
        self.records += rows
        if self.folder.ranks.is_rank_zero:  # which writes for all
            self.best.consider(last)
            if self.best_averaged is not None and averaged:
                self.best_averaged.consider(averaged)

    @property
    def evaluations_since_best(self) -> int:
        """How many evaluations in a row have improved training-domain validation of no weights; known to rank zero."""
        best = max(one.step for one in (self.best, self.best_averaged) if one is not None)
        return len({record.step for record in self.records if record.step > best})

    def _provenance(self) -> dict[str, Any]:
        return provenance(self.session.device) | {"threads": self.session.run.threads}

    def checkpoint_due(self) -> bool:
        return time.monotonic() - self._saved > self.checkpoint_seconds

    def save_checkpoint(self) -> None:
        state = self.session.state() | {"seconds": self.seconds, "best": self.best.state()}
        if self.best_averaged is not None:
            state["best_averaged"] = self.best_averaged.state()
        self.folder.save_checkpoint(state)
        self._saved = time.monotonic()

    def finish(self, status: Status) -> Status:
        """Writes the last, best and averaged weights, then the status; returns it with its provenance."""
        run, status = self.session.run, replace(status, **self._provenance())
        done = status.status == "done"
        best, averaged = self.best.saved if done else None, self._averaged() if done else None
        self.folder.finish(status, self.session.algorithm.state_dict(), best, averaged, self.session.frozen)
        self.trackers.end(status)
        log.info("%s (%s): %s", run, run.id, f"{status.status} {status.reason}".strip())
        self.folder.release_locks()
        return status

    def _averaged(self) -> tuple[AveragedSteps, dict[str, Tensor]] | None:
        """The averaged weights of the selected step, or of the last one where nothing was held out."""
        average = self.session.average
        if average is None or self.best_averaged is None or not self.folder.ranks.is_rank_zero:
            return None
        if self.best_averaged.saved is not None:
            step, tensors = self.best_averaged.saved
            return average.steps(step, selected=True), tensors
        return average.steps(self.session.run.steps - 1, selected=False), average.state_dict()
