"""Trackers: a run's records also sent to TensorBoard, Weights & Biases or MLflow, as they are made.

The records in the run's folder remain authoritative: a tracker that fails is dropped with a warning, and training goes
on. A run that continues from its checkpoint continues its curves.
"""

import logging
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from domainwise.core.errors import UserError, unknown
from domainwise.protocol.records import Record, Status
from domainwise.protocol.runs import Run

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Receives the evaluations of one run."""

    def record(self, step: int, values: dict[str, float]) -> None:
        """The evaluation after a step: "accuracy/<domain>/<split>", "loss/<domain>/<split>" and "loss/training".

        Those of averaged weights begin with "sma-accuracy" and "sma-loss".
        """

    def end(self, status: Status | None) -> None:
        """The run ended with this status; None if it was stopped and can be continued."""


class TensorBoard:
    """Event files in the run's folder: tensorboard --logdir OUT."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.writer: Any = _import("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder / "tensorboard"))
        self.writer.add_text("run", f"{run}\n\n" + "\n".join(f"- {k}: {v}" for k, v in run.describe().items()))

    def record(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def end(self, status: Status | None) -> None:
        if status is not None:
            self.writer.add_text("status", f"{status.status} {status.reason}", status.step)
        self.writer.close()


class WandB:
    """A run of the same identity in the project `domainwise`; WANDB_PROJECT and WANDB_MODE are respected."""

    def __init__(self, run: Run, folder: Path) -> None:
        wandb = _import("wandb", "wandb")
        self.run: Any = wandb.init(
            project=wandb.env.get_project() or "domainwise",
            id=run.id,
            name=str(run),
            config=run.describe(),
            dir=str(folder),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True),
        )

    def record(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)

    def end(self, status: Status | None) -> None:
        state = "stopped" if status is None else status.status
        self.run.summary["status"] = state
        self.run.finish(exit_code=0 if state in ("stopped", "done") else 1)


class MLflow:
    """A run of the experiment `domainwise` at MLFLOW_TRACKING_URI; its tag `domainwise.run` is the run's identity."""

    TAG = "domainwise.run"

    def __init__(self, run: Run, folder: Path) -> None:  # noqa: ARG002 (MLflow chooses the folder)
        self.client: Any = _import("mlflow", "mlflow").MlflowClient()
        existing = self.client.get_experiment_by_name("domainwise")
        experiment = existing.experiment_id if existing else self.client.create_experiment("domainwise")
        earlier = self.client.search_runs([experiment], f"tags.`{self.TAG}` = '{run.id}'", max_results=1)
        self.id: str = (
            earlier[0].info.run_id
            if earlier
            else self.client.create_run(experiment, tags={self.TAG: run.id}, run_name=str(run)).info.run_id
        )
        if not earlier:
            for name, value in run.describe().items():
                self.client.log_param(self.id, name, str(value)[:500])

    def record(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.client.log_metric(self.id, re.sub(r"[^\w\-. :/]", "_", name), value, step=step)

    def end(self, status: Status | None) -> None:
        state = "KILLED" if status is None else "FINISHED" if status.status == "done" else "FAILED"
        self.client.set_terminated(self.id, state)


TRACKERS: dict[str, type[TensorBoard] | type[WandB] | type[MLflow]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def check(names: Sequence[str]) -> None:
    """Raises UserError for an unknown name or a missing package, before any work."""
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        _import({"tensorboard": "torch.utils.tensorboard"}.get(name, name), name)


class Trackers:
    """All trackers of one run. A tracker that fails is dropped, with a warning."""

    def __init__(self, names: Sequence[str], run: Run, folder: Path) -> None:
        self.active: dict[str, Tracker] = {}
        for name in names:
            try:
                self.active[name] = TRACKERS[name](run, folder)
            except Exception as error:
                self._drop(name, error)

    def record(self, step: int, records: Sequence[Record]) -> None:
        values = {}
        for record in records:
            weights = f"{record.average}-" if record.average else ""
            for name, value in record.scores._asdict().items():
                if value is not None:
                    values[f"{weights}{name}/{record.domain}/{record.split}"] = value
            if record.training_loss is not None:
                values["loss/training"] = record.training_loss
        self._each(lambda tracker: tracker.record(step, values))

    def end(self, status: Status | None) -> None:
        self._each(lambda tracker: tracker.end(status))

    def _each(self, notify: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.active.items()):
            try:
                notify(tracker)
            except Exception as error:
                self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        self.active.pop(name, None)
        log.warning(
            "%s no longer tracks this run (%s: %s); its records are still written", name, type(error).__name__, error
        )


def _import(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise UserError(f"{package} is not installed: pip install {package}", argument="log_to") from None
