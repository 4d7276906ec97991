"""Streaming of images that do not fit the device: gathered on the host and copied while the device computes.

Streaming never changes which images are drawn, only where they are gathered.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from domainwise.data.environments import Environments

DEPTH = 3
"""Batches that are prefetched."""

Tensors = tuple[Tensor, ...]


class Prefetcher:
    """Runs jobs in order in a background thread with its own CUDA stream; results are taken in the same order.

    Taking a result makes the device's current stream wait for the copy, not the host. The host waits only if the thread
    is behind (gathering is slower than training), or if the device is DEPTH results behind, which bounds its memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self.pending: deque[Future[tuple[Tensors, torch.cuda.Event | None]]] = deque()
        self.taken: deque[torch.cuda.Event] = deque()

    def put(self, job: Callable[[], Tensors]) -> None:
        self.pending.append(self.pool.submit(self._do, job))

    def _do(self, job: Callable[[], Tensors]) -> tuple[Tensors, torch.cuda.Event | None]:
        with torch.cuda.stream(self.stream) if self.stream is not None else nullcontext():
            return job(), self.stream.record_event() if self.stream is not None else None

    def get(self) -> Tensors:
        tensors, copied = self.pending.popleft().result()
        if copied is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(copied)
            for tensor in tensors:
                if tensor.is_cuda:
                    tensor.record_stream(stream)
            self.taken.append(stream.record_event())
            if len(self.taken) > DEPTH:
                self.taken.popleft().synchronize()
        return tensors

    def settle(self) -> None:
        """Returns when all jobs are done."""
        wait(self.pending)

    def clear(self) -> None:
        """Drops all jobs; returns when none is running."""
        for job in self.pending:
            if not job.cancel():
                job.exception()
        self.pending.clear()


def chunks(environments: Environments, rows: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Images (uint8) and labels of the rows, `size` at a time, on the device; prefetched if they are streamed."""
    parts = rows.split(size)
    if not environments.streamed:
        yield from map(environments.gather, parts)
        return
    prefetcher = Prefetcher(environments.device)
    try:
        for number, part in enumerate(parts):
            prefetcher.put(partial(environments.gather, part))
            if number >= DEPTH:
                yield prefetcher.get()  # type: ignore[misc]
        while prefetcher.pending:
            yield prefetcher.get()  # type: ignore[misc]
    finally:
        prefetcher.clear()
        prefetcher.pool.shutdown()
