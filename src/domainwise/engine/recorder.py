"""Records, checkpoints and the status of one training, on disk and in trackers."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from domainwise.core.provenance import provenance
from domainwise.engine.best import BestWeights
from domainwise.engine.evaluation import Split
from domainwise.engine.execution.ranks import SharedRunFolder
from domainwise.engine.penalties import track_penalties
from domainwise.engine.session import Session
from domainwise.engine.trackers import Trackers
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
        self.trackers = Trackers(log_to if folder.ranks.is_rank_zero else (), session.run, folder.path)
        self._started = self._saved = time.monotonic()

    def load_state(self, checkpoint: dict[str, Any]) -> None:
        self._started -= float(checkpoint["seconds"])
        self.best.load_state(checkpoint["best"])

    @property
    def seconds(self) -> float:
        """The duration of the training, including what was done before it was interrupted."""
        return time.monotonic() - self._started

    def record(
        self, step: int, scores: Mapping[Split, tuple[float, float]], seconds: float, training_loss: float
    ) -> None:
        """Writes one record per split, and the penalties if the run tracks them."""
        run, shared = self.session.run, (round(seconds, 3), training_loss)
        rows = [Record(run.id, step, *split, *score, *shared) for split, score in scores.items()]
        if "penalties" in run.track:
            self.folder.append_penalties(track_penalties(self.session, step))
        self.folder.append(rows)
        self.trackers.record(step, rows)
        log.debug("%s: evaluated after step %d", run.id, step)
        self.records += rows
        if self.folder.ranks.is_rank_zero:  # which writes for all
            self.best.consider(rows)

    @property
    def evaluations_since_best(self) -> int:
        """How many evaluations in a row have not improved training-domain validation; known to rank zero."""
        return len({record.step for record in self.records if record.step > self.best.step})

    def _provenance(self) -> dict[str, Any]:
        return provenance(self.session.device) | {"threads": self.session.run.threads}

    def checkpoint_due(self) -> bool:
        return time.monotonic() - self._saved > self.checkpoint_seconds

    def save_checkpoint(self) -> None:
        self.folder.save_checkpoint(self.session.state() | {"seconds": self.seconds, "best": self.best.state()})
        self._saved = time.monotonic()

    def finish(self, status: Status) -> Status:
        """Writes the models of the last and of the best step, then the status; returns it with its provenance."""
        run, status = self.session.run, replace(status, **self._provenance())
        best = self.best.saved if status.status == "done" else None
        self.folder.finish(status, self.session.algorithm.state_dict(), best)
        self.trackers.end(status)
        log.info("%s (%s): %s", run, run.id, f"{status.status} {status.reason}".strip())
        self.folder.release_locks()
        return status
