"""Ranks: the processes that torchrun starts to train one model together.

Every rank draws the same random numbers, sees the same batches and holds the same weights; only the passes through the
network are divided (see `data_parallel`). Ranks can differ in the clock, signals and the disk, so they agree on those
here: rank zero reads and writes, and its values count. The number of ranks is not part of a run's identity, since
results agree up to rounding.
"""

import atexit
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from domainwise.core import torchrun
from domainwise.core.errors import UserError
from domainwise.core.locks import RunLock
from domainwise.protocol.averages import AveragedSteps
from domainwise.protocol.records import PenaltyRecord, Record, Status
from domainwise.protocol.run_folder import RunFolder

log = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")


class RankFailed(UserError):
    """Another rank has ended; that rank prints the reason."""


@dataclass(frozen=True)
class Ranks:
    """All ranks, as seen by one of them. With a single process nothing is communicated."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on some rank. The hosts wait for each other, not for their GPUs."""
        if self.size == 1:
            return flag
        votes = torch.tensor(int(flag))
        with detect_rank_failure():
            dist.all_reduce(votes, dist.ReduceOp.MAX)
        return bool(votes)

    def on_rank_zero(self, work: Callable[[], T]) -> T:
        """Calls `work` on rank zero and returns its result on every rank; if it raises, the others raise RankFailed."""
        if self.size == 1:
            return work()
        result: list[Any] = [None]
        try:
            if self.is_rank_zero:
                result = [[work()]]
        finally:
            with detect_rank_failure():
                dist.broadcast_object_list(result)
        if result[0] is None:
            raise RankFailed("the first process of this training has ended; its own message says why")
        return result[0][0]

    @contextmanager
    def all_succeed(self) -> Iterator[None]:
        """A UserError raised within it on some rank is raised on all."""
        failure: UserError | None = None
        try:
            yield
        except UserError as error:
            failure = error
        if self.size > 1:
            messages: list[str | None] = [None] * self.size
            with detect_rank_failure():
                dist.all_gather_object(messages, failure and str(failure))
            failure = failure or next((UserError(message) for message in messages if message), None)
        if failure is not None:
            raise failure

    @torch.no_grad()
    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copies rank zero's values to all ranks.

        They differ at most in the last bits of what each rank computes for itself (the classifier's gradient, say),
        since a GPU need not repeat a sum exactly. Broadcasting at every evaluation keeps the difference that small.
        """
        if self.size == 1:
            return
        for tensor in tensors:
            values = tensor.contiguous()
            with detect_rank_failure():
                dist.broadcast(values, 0)
            tensor.copy_(values)


@contextmanager
def detect_rank_failure() -> Iterator[None]:
    """Within it, a broken connection to another rank raises RankFailed."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        log.info("a message between ranks failed: %s", error)
        raise RankFailed(
            "another process of this training has ended or cannot be reached; its own message says why"
        ) from None


def join_ranks(device: torch.device) -> Ranks:
    """The ranks that torchrun started this process with, on one GPU each or all on CPUs; else this process alone."""
    if torchrun.world_size() == 1:
        return Ranks(device)
    if device.type == "cuda":
        if torchrun.local_rank() >= torch.cuda.device_count():
            raise UserError(
                f"a GPU for each process is needed, but there are {torch.cuda.device_count()}: "
                f"torchrun --nproc-per-node {torch.cuda.device_count()}, or use the CPU",
                argument="device",
            )
        device = torch.device("cuda", torchrun.local_rank())
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        _prefer_loopback()
        with detect_rank_failure():
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)
    return Ranks(device, dist.get_rank(), dist.get_world_size())


def _prefer_loopback() -> None:
    """Ranks on one machine communicate over its loopback interface, unless the environment names another."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if torchrun.on_one_machine() and loopback:
        for backend in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{backend}_SOCKET_IFNAME", loopback)


class SharedRunFolder:
    """A run's folder and its lock, shared by all ranks: rank zero reads for all of them, and only rank zero writes.

    Every write checks first that the lock is still owned. The other ranks need no access to the folder.
    """

    def __init__(self, folder: RunFolder, ranks: Ranks) -> None:
        self.run, self.path, self.ranks = folder.run, folder.path, ranks
        self._folder, self._lock = folder, RunLock(folder.path)

    def locked(self) -> AbstractContextManager[object]:
        """Within it, the run belongs to these ranks; raises RunLocked on entering if another process has it."""
        return self._lock if self.ranks.is_rank_zero else nullcontext()

    def create(self) -> None:
        self.ranks.on_rank_zero(self._folder.create)

    def reopen(self, retry: bool) -> tuple[list[Record], Status | None]:
        return self.ranks.on_rank_zero(partial(self._folder.reopen, retry))

    def rewind(self, step: int) -> list[Record]:
        return self.ranks.on_rank_zero(partial(self._folder.rewind, step))

    def load_checkpoint(self) -> dict[str, Any] | None:
        return self.ranks.on_rank_zero(self._folder.load_checkpoint)

    def append(self, rows: Iterable[Record]) -> None:
        self._write(self._folder.append, rows)

    def append_penalties(self, rows: Iterable[PenaltyRecord]) -> None:
        self._write(self._folder.append_penalties, rows)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        self._write(self._folder.save_checkpoint, state)

    def finish(
        self,
        status: Status,
        model: dict[str, Tensor],
        best: tuple[int, dict[str, Tensor]] | None = None,
        averaged: tuple[AveragedSteps, dict[str, Tensor]] | None = None,
        frozen: Sequence[str] = (),
    ) -> None:
        self._write(self._folder.finish, status, model, best, averaged, frozen)

    def release_locks(self) -> None:
        """Removes all locks of a run that has ended."""
        if self.ranks.is_rank_zero:
            self._lock.release_all()

    def _write(self, method: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        if self.ranks.is_rank_zero:
            self._lock.ensure_owned()
            try:
                method(*args, **kwargs)
            except RuntimeError as error:  # of torch.save, raised while it handles that of the file
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise
