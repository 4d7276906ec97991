"""Processes that train one model together, started by torchrun: all compute, the first one (rank 0) reads and writes.

Every rank draws the same random numbers, sees the same batches and holds the same weights; only the network's work is
divided (see `engine.spread`). So what one rank knows all know, but for the clock, signals and the disk: those are asked
here. How many ranks there are is no part of a run's identity, since results agree up to rounding.
"""

import atexit
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from domainwise.core import torchrun
from domainwise.core.errors import UserError
from domainwise.core.locks import RunLock
from domainwise.protocol.records import PenaltyRecord, Record, RunFolder, Status
from domainwise.protocol.runs import Run

log = logging.getLogger(__name__)
T = TypeVar("T")


class Lost(UserError):
    """Another rank has ended, for a reason which it has told."""


@dataclass(frozen=True)
class Crew:
    """The ranks, as one of them sees them; a crew of one has nobody to ask."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on some rank. The hosts wait for each other, not for their GPUs."""
        if self.size == 1:
            return flag
        votes = torch.tensor(int(flag))
        with listening():
            dist.all_reduce(votes, dist.ReduceOp.MAX)
        return bool(votes)

    def led(self, work: Callable[[], T]) -> T:
        """What the leader's work gives, on every rank. Where it raises an error, the others are Lost."""
        if self.size == 1:
            return work()
        answer: list[Any] = [None]
        try:
            if self.leads:
                answer = [[work()]]
        finally:
            with listening():
                dist.broadcast_object_list(answer)
        if answer[0] is None:
            raise Lost("the first process of this training has ended; its own message says why")
        return answer[0][0]

    @contextmanager
    def unanimous(self) -> Iterator[None]:
        """A user's mistake that some rank finds within it is raised on all."""
        found: UserError | None = None
        try:
            yield
        except UserError as error:
            found = error
        if self.size > 1:
            mistakes: list[str | None] = [None] * self.size
            with listening():
                dist.all_gather_object(mistakes, found and str(found))
            found = found or next((UserError(mistake) for mistake in mistakes if mistake), None)
        if found is not None:
            raise found

    @torch.no_grad()
    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Gives all ranks the leader's values.

        They have them already but for the last bits of what each computed for itself, the classifier's gradient say: a
        GPU need not repeat a sum exactly. Done at every evaluation, no difference has time to grow.
        """
        if self.size == 1:
            return
        for tensor in tensors:
            values = tensor.contiguous()
            with listening():
                dist.broadcast(values, 0)
            tensor.copy_(values)


@contextmanager
def listening() -> Iterator[None]:
    """Within it, a connection that breaks means that another rank is Lost."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        log.info("a message between ranks failed: %s", error)
        raise Lost(
            "another process of this training has ended or cannot be reached; its own message says why"
        ) from None


def join(device: torch.device) -> Crew:
    """The crew that torchrun has started this process in, on a GPU each or all on CPUs; else a crew of one."""
    if torchrun.world_size() == 1:
        return Crew(device)
    if device.type == "cuda":
        if torchrun.local_rank() >= torch.cuda.device_count():
            raise UserError(
                f"a GPU for each process is needed, but there are {torch.cuda.device_count()}: "
                f"torchrun --nproc-per-node {torch.cuda.device_count()}, or --device cpu"
            )
        device = torch.device("cuda", torchrun.local_rank())
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        _stay_on_this_machine()
        with listening():
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)
    return Crew(device, dist.get_rank(), dist.get_world_size())


def _stay_on_this_machine() -> None:
    """Ranks of one machine talk over its loopback, unless the environment says otherwise."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if torchrun.on_one_machine() and loopback:
        for backend in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{backend}_SOCKET_IFNAME", loopback)


class SharedFolder(RunFolder):
    """A run's folder, which the leader reads and writes for all ranks: the others need not have it."""

    def __init__(self, parent: Path, run: Run, crew: Crew) -> None:
        super().__init__(parent, run)
        self.crew, self.leaders = crew, RunFolder(parent, run)

    def create(self) -> None:
        self.crew.led(self.leaders.create)

    def reopen(self, retry: bool) -> tuple[list[Record], Status | None]:
        return self.crew.led(partial(self.leaders.reopen, retry))

    def rewind(self, step: int) -> list[Record]:
        return self.crew.led(partial(self.leaders.rewind, step))

    def load_checkpoint(self) -> dict[str, Any] | None:
        return self.crew.led(self.leaders.load_checkpoint)

    def append(self, rows: Iterable[Record | Status]) -> None:
        if self.crew.leads:
            self.leaders.append(rows)

    def append_penalties(self, rows: Iterable[PenaltyRecord]) -> None:
        if self.crew.leads:
            self.leaders.append_penalties(rows)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        if self.crew.leads:
            self.leaders.save_checkpoint(state)

    def finish(self, status: Status, model: dict[str, Tensor]) -> None:
        if self.crew.leads:
            self.leaders.finish(status, model)


class LeadersClaim(RunLock):
    """What the others hold in place of a claim: the leader's counts for them."""

    def __enter__(self) -> "LeadersClaim":
        return self

    def ensure_owned(self) -> None:
        pass

    def release_all(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass
