"""Runs on a Ray cluster: an existing one by its address, or a new one on this machine, on the loopback interface."""

import logging
import os
import socket
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from domainwise.core.errors import UserError
from domainwise.protocol.runs import Run
from domainwise.sweeps.cluster import GRACE_SECONDS, TaskEnded, execute_on, train_task
from domainwise.sweeps.events import Event, Settings

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.5
CONNECT_SECONDS = 10.0
MULTIPLE_NODES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0 before Ray is imported, it allows one node only; otherwise Ray listens on all interfaces."""
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
TOKEN_FILE = Path("~/.ray/auth_token")


class RayCluster:
    """One task per run, with a CPU per thread and, if there are GPUs and the device is not cpu, one GPU."""

    poll_seconds = POLL_SECONDS

    def __init__(self, address: str | None, device: str = "cpu") -> None:
        _set_environment(address)
        try:
            import ray
        except ImportError:
            raise UserError("Ray is not installed: pip install 'domainwise[ray]'", argument="on") from None
        self.ray: Any = ray
        self.connected_here = not ray.is_initialized()
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.connected_here and address is None:
            self.ray.init(address="local", _node_ip_address=LOOPBACK, include_dashboard=False, **quiet)
        elif self.connected_here:
            try:
                self.ray.init(address=address, **quiet)
            except (ConnectionError, ValueError, RuntimeError) as error:
                first = str(error).splitlines()[0] if str(error) else type(error).__name__
                reason = f"no Ray cluster at {address}, or none that accepts us ({first})"
                raise UserError(reason, argument="address") from None
        has_gpus = self.ray.cluster_resources().get("GPU", 0) > 0
        if device == "cuda" and not has_gpus:
            raise UserError("no node of this Ray cluster offers a GPU: use cpu", argument="device")
        gpus = int(has_gpus and device != "cpu")  # with 0, Ray hides the node's GPUs from the task
        self.task = ray.remote(num_gpus=gpus, max_retries=0)(train_task)
        self.pending: dict[Any, Run] = {}

    @property
    def capacity(self) -> int:
        """Twice the tasks that can run at once, so that no worker waits for the driver."""
        return 2 * max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def adopt(self, run: Run) -> bool:  # noqa: ARG002 (a driver's tasks end with it)
        return False

    def submit(self, run: Run, settings: Settings) -> None:
        self.pending[self.task.options(num_cpus=run.threads).remote(run, settings)] = run

    def finished(self) -> list[TaskEnded]:
        if not self.pending:
            return []
        ready, _ = self.ray.wait(list(self.pending), num_returns=len(self.pending), timeout=0)
        return [TaskEnded(self.pending.pop(reference), self._lost(reference)) for reference in ready]

    def _lost(self, reference: Any) -> str:
        """Why a task was lost (its worker or its node died), empty if it was not."""
        try:
            self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            return type(error).__name__
        return ""

    def close(self) -> None:
        if self.pending:
            for reference in self.pending:
                self.ray.cancel(reference)  # arrives in the training as Ctrl-C
            self.ray.wait(list(self.pending), num_returns=len(self.pending), timeout=GRACE_SECONDS)
            for reference in self.pending:
                self.ray.cancel(reference, force=True)
        if self.connected_here:
            self.ray.shutdown()


def _set_environment(address: str | None) -> None:
    """Ray reads these settings from the environment when it is imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        os.environ.setdefault(MULTIPLE_NODES, "0")
        return
    _check_reachable(address)
    if any(os.environ.get(name) for name in TOKENS) or TOKEN_FILE.expanduser().exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # which Ray itself does only for clusters without an address


def _check_reachable(address: str) -> None:
    """Raises at once if nothing listens at HOST:PORT, which takes Ray minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # "auto", or another of Ray's names
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(f"no Ray cluster at {address} ({error.strerror or error})", argument="address") from None


def execute(runs: Sequence[Run], settings: Settings, address: str | None = None) -> Generator[Event]:
    """Trains all runs that have not ended yet as Ray tasks and yields their events."""
    settings.check(runs, here=False)
    return execute_on(RayCluster(address, settings.device), runs, settings)
