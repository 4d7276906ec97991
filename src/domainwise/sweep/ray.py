"""Runs on a Ray cluster: an existing one by its address, or one started here that listens on the loopback interface."""

import logging
import os
from collections.abc import Generator, Sequence
from typing import Any

from domainwise.errors import UserError
from domainwise.runs import Run
from domainwise.sweep.cluster import GRACE_SECONDS, Over, execute_on, train_task
from domainwise.sweep.events import Event, Settings

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.5


class RayCluster:
    """One task per run, one CPU each and, unless the runs are for the CPU, one GPU of a cluster that has any."""

    poll_seconds = POLL_SECONDS

    def __init__(self, address: str | None, device: str = "cpu") -> None:
        try:
            import ray
        except ImportError:
            raise UserError("--on ray needs Ray: pip install 'domainwise[ray]'") from None
        self.ray: Any = ray
        self.mine = not ray.is_initialized()
        if self.mine and address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(
                _node_ip_address=LOOPBACK, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
            )
        elif self.mine:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                first = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise UserError(f"--address {address}: no Ray cluster there ({first})") from None
        has_gpus = self.ray.cluster_resources().get("GPU", 0) > 0
        if device == "cuda" and not has_gpus:
            raise UserError("--device cuda: no node of this Ray cluster offers a GPU; use --device cpu")
        gpus = int(has_gpus and device != "cpu")  # without one, Ray hides the node's GPUs from the task
        self.task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(train_task)
        self.pending: dict[Any, Run] = {}

    @property
    def capacity(self) -> int:
        """Twice what can run at once, so that no worker waits for the driver."""
        return 2 * max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def adopt(self, run: Run) -> bool:  # noqa: ARG002 (Ray ends a driver's tasks with it)
        return False

    def submit(self, run: Run, settings: Settings) -> None:
        self.pending[self.task.remote(run, settings)] = run

    def finished(self) -> list[Over]:
        if not self.pending:
            return []
        ready, _ = self.ray.wait(list(self.pending), num_returns=len(self.pending), timeout=0)
        return [Over(self.pending.pop(reference), self._loss(reference)) for reference in ready]

    def _loss(self, reference: Any) -> str:
        """Why a task was lost (its worker or its node died), empty if it came to its end."""
        try:
            self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            return type(error).__name__
        return ""

    def close(self) -> None:
        if self.pending:
            for reference in self.pending:
                self.ray.cancel(reference)  # reaches the training as Ctrl-C does
            self.ray.wait(list(self.pending), num_returns=len(self.pending), timeout=GRACE_SECONDS)
            for reference in self.pending:
                self.ray.cancel(reference, force=True)
        if self.mine:
            self.ray.shutdown()


def execute(runs: Sequence[Run], settings: Settings, address: str | None = None) -> Generator[Event]:
    """Trains all runs that have not ended yet as Ray tasks."""
    return execute_on(RayCluster(address, settings.device), runs, settings)
