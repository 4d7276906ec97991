"""Torch's process-wide state, kept separately for each run: interleaved runs give the results of runs alone."""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

import torch

from domainwise.core.threads import cpu_threads

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Within it, float32 on a GPU is exact for "fp32", else TF32 is allowed; convolutions are deterministic."""
    cudnn, tf32 = torch.backends.cudnn, precision != "fp32"
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    cudnn.allow_tf32, cudnn.deterministic = tf32, True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.deterministic = before[1:]


class RunContext:
    """Within it, torch uses the random state, number of CPU threads, CUDA stream and float32 arithmetic of one run."""

    def __init__(self, device: torch.device, precision: str, threads: int = 1) -> None:
        self.gpu, self.precision, self.threads = device.type == "cuda", precision, threads
        self.random = torch.get_rng_state()
        if self.gpu:
            self.stream = torch.cuda.Stream(device)
            self.gpu_random = torch.Generator(self.stream.device)
        self._exit = ExitStack()

    def __enter__(self) -> "RunContext":
        with ExitStack() as stack:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            torch.set_rng_state(self.random)
            stack.enter_context(cpu_threads(self.threads))
            if self.gpu:
                default = torch.cuda.default_generators[self.stream.device.index]
                stack.callback(default.graphsafe_set_state, default.graphsafe_get_state())
                default.graphsafe_set_state(self.gpu_random)  # not a copy: captured steps refer to this state
                stack.enter_context(torch.cuda.stream(self.stream))
                stack.enter_context(arithmetic(self.precision))
            self._exit = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.random = torch.get_rng_state()
        self._exit.close()
        if kind is not None and self.gpu:
            self.stream.synchronize()  # before another run's stream reuses this run's memory


def isolated(steps: Generator[T, None, R], context: RunContext) -> Generator[T, None, R]:
    """The same generator, which works within its run's context and yields outside of it."""
    with closing(steps):
        while True:
            with context:
                try:
                    step = next(steps)
                except StopIteration as end:
                    return end.value
            yield step
