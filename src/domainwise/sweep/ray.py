"""Runs on a Ray cluster: an existing one by its address, or one started here that listens on the loopback interface."""

import logging
import os
import socket
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from domainwise.core.errors import UserError
from domainwise.protocol.runs import Run
from domainwise.sweep.cluster import GRACE_SECONDS, Over, execute_on, train_task
from domainwise.sweep.events import Event, Settings

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.5
KNOCK_SECONDS = 10.0
ONLY_HERE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0, before Ray is imported, a cluster may have one node only: without it, Ray listens on all interfaces."""
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
TOKEN_FILE = Path("~/.ray/auth_token")


class RayCluster:
    """One task per run, one CPU each and, unless the runs are for the CPU, one GPU of a cluster that has any."""

    poll_seconds = POLL_SECONDS

    def __init__(self, address: str | None, device: str = "cpu") -> None:
        _prepare(address)
        try:
            import ray
        except ImportError:
            raise UserError("--on ray needs Ray: pip install 'domainwise[ray]'") from None
        self.ray: Any = ray
        self.mine = not ray.is_initialized()
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.mine and address is None:
            self.ray.init(address="local", _node_ip_address=LOOPBACK, include_dashboard=False, **quiet)
        elif self.mine:
            try:
                self.ray.init(address=address, **quiet)
            except (ConnectionError, ValueError, RuntimeError) as error:
                first = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise UserError(f"--address {address}: no Ray cluster there, or not one for us ({first})") from None
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


def _prepare(address: str | None) -> None:
    """What must be known before Ray is imported: it reads its settings from the environment then."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        os.environ.setdefault(ONLY_HERE, "0")
        return
    _knock(address)
    if any(os.environ.get(name) for name in TOKENS) or TOKEN_FILE.expanduser().exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # as Ray does by itself for clusters it finds, not named ones


def _knock(address: str) -> None:
    """Finds out at once that nobody listens at HOST:PORT, which takes Ray minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # "auto", or a name of Ray's own
        return
    try:
        socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()
    except OSError as error:
        raise UserError(f"--address {address}: no Ray cluster there ({error.strerror or error})") from None


def execute(runs: Sequence[Run], settings: Settings, address: str | None = None) -> Generator[Event]:
    """Trains all runs that have not ended yet as Ray tasks."""
    return execute_on(RayCluster(address, settings.device), runs, settings)
