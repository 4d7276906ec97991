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
SETTINGS_FRAME = b"\x04"
HTTP2_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + SETTINGS_FRAME + bytes(5)
"""With empty settings of ours."""
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
        self.address, self.disconnected = address, False
        self.connected_here = not ray.is_initialized()
        if self.connected_here:
            self._connect()
        has_gpus = self.ray.cluster_resources().get("GPU", 0) > 0
        if device == "cuda" and not has_gpus:
            raise UserError("no node of this Ray cluster offers a GPU: use cpu", argument="device")
        gpus = int(has_gpus and device != "cpu")  # with 0, Ray hides the node's GPUs from the task
        self.task = ray.remote(num_gpus=gpus, max_retries=0)(train_task)
        self.pending: dict[Any, Run] = {}

    def _connect(self) -> None:
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address is None:
            self.ray.init(address="local", _node_ip_address=LOOPBACK, include_dashboard=False, **quiet)
            return
        try:
            self.ray.init(address=self.address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            reason = f"no Ray cluster at {self.address}, or none that accepts us ({first})"
            raise UserError(reason, argument="address") from None

    def ready(self) -> bool:
        """Whether a node with a CPU is alive; connects again if the node that this driver talks to has died."""
        if self.pending:
            return True
        try:
            if self.disconnected and self.connected_here:
                self.ray.shutdown()
                self._connect()
                self.disconnected = False
            return any(node["Alive"] and node["Resources"].get("CPU", 0) >= 1 for node in self.ray.nodes())
        except (UserError, ConnectionError, RuntimeError, self.ray.exceptions.RayError):
            self.disconnected = True
            return False

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
        return [self._ended(reference) for reference in ready]

    def _ended(self, reference: Any) -> TaskEnded:
        """A task that has ended, or was lost because its worker or its node died."""
        run, errors = self.pending.pop(reference), self.ray.exceptions
        try:
            self.ray.get(reference)
        except errors.RayError as error:
            self.disconnected |= isinstance(error, errors.LocalRayletDiedError)
            node_died = isinstance(error, (errors.NodeDiedError, errors.LocalRayletDiedError, errors.RaySystemError))
            return TaskEnded(run, type(error).__name__, node_died=node_died)
        return TaskEnded(run)

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
    """Raises within seconds if no Ray cluster listens at HOST:PORT, which takes Ray minutes.

    Ray speaks HTTP/2: a server answers the client's opening with its settings.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # "auto", or another of Ray's names
        return
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            connection.sendall(HTTP2_OPENING)
            answer = connection.recv(9)
    except TimeoutError:
        reason = f"no answer within {CONNECT_SECONDS:.0f} s"
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    else:
        reason = "" if answer[3:4] == SETTINGS_FRAME else "something else listens there"
    if reason:
        raise UserError(f"no Ray cluster at {address} ({reason})", argument="address")


def execute(runs: Sequence[Run], settings: Settings, address: str | None = None) -> Generator[Event]:
    """Trains all runs that have not ended yet as Ray tasks and yields their events."""
    settings.check(runs, here=False)
    return execute_on(RayCluster(address, settings.device), runs, settings)
