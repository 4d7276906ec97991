"""A step as CUDA graphs: the host asks once for what would otherwise be hundreds of launches.

One graph holds everything between two visits of the host: drawing the batch, normalising, ascending, forward, backward,
optimiser. What changes over time is outside, in `Algorithm.schedule`: it fills buffers that the graph reads, or chooses
a phase, and every phase has a graph of its own. The same code runs captured and not; only who launches it differs.

A graph is recorded where the training stands: steps made to warm up are undone, random numbers included, so that
captured and eager training are the same training.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from domainwise.algorithms.base import Algorithm
from domainwise.engine.execution.compilation import compiled

log = logging.getLogger(__name__)

WARM_UP = 3
"""Steps before a recording: libraries choose their algorithms, kernels are compiled, memory is found."""
WORTH_COMPILING = 1000
"""Steps from which a training wins back the seconds that compiling takes."""

Work = Callable[[], None]


class CapturedStep:
    """Work of an algorithm, always the same, that is recorded when first done in a phase, and replayed from then on.

    Where it cannot be recorded compiled it is recorded as it is, and where it cannot be recorded it is simply done,
    with one line that says why. `tensors` and `generators` are what the work changes besides the algorithm's own;
    `prepare` makes a batch's images what the network sees; `settle` returns when nothing else uses the device.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        tensors: Sequence[Tensor] = (),
        generators: Sequence[torch.Generator] = (),
        prepare: object = None,
        compile: bool = False,
        settle: Work = lambda: None,
    ) -> None:
        self.algorithm, self.prepare, self.compile, self.settle = algorithm, prepare, compile, settle
        self.tensors, self.generators = tensors, (algorithm.noise, *generators)
        self.graphs: dict[str, torch.cuda.CUDAGraph | None] = {}

    def __call__(self, work: Work) -> None:
        phase = self.algorithm.phase
        if phase not in self.graphs:
            self.graphs[phase] = self._record(work)
        graph = self.graphs[phase]
        if graph is None:
            work()
        else:
            graph.replay()

    def forget(self) -> None:
        """For a state that was loaded: graphs refer to the tensors they were recorded with."""
        self.graphs.clear()

    def _record(self, work: Work) -> torch.cuda.CUDAGraph | None:
        """The graph of the current phase, at its best; None if there can be none."""
        self.settle()
        name = type(self.algorithm).__name__
        if self.compile and not self.algorithm.differentiates_twice:
            try:
                with compiled(self.algorithm, self.prepare):
                    return record(work, self._snapshot, self.generators)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                log.warning("%s is captured without being compiled: %s", name, first_line(error))
        try:
            return record(work, self._snapshot, self.generators)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            log.warning("%s is not captured, and slower for it: %s", name, first_line(error))
        return None

    def _snapshot(self) -> "Snapshot":
        return Snapshot(self.algorithm, self.tensors, self.generators)


class Snapshot:
    """The values of everything that steps change, which can be put back in place."""

    def __init__(self, algorithm: Algorithm, tensors: Iterable[Tensor], generators: Iterable[torch.Generator]) -> None:
        self.algorithm = algorithm
        self.values = [(tensor, tensor.detach().clone()) for tensor in (*changing(algorithm), *tensors)]
        default = [torch.default_generator]
        if algorithm.problem.low.is_cuda:
            default.append(torch.cuda.default_generators[algorithm.problem.low.get_device()])
        self.random = [(generator, generator.get_state()) for generator in (*default, *generators)]

    @torch.no_grad()
    def restore(self) -> None:
        """Puts all values back; moments that the optimisers have made since start at zero, as Adam's do."""
        known = {id(tensor) for tensor, _ in self.values}
        for moment in _moments(self.algorithm):
            if id(moment) not in known:
                moment.zero_()
        for tensor, value in self.values:
            tensor.copy_(value)
        for generator, state in self.random:
            generator.set_state(state)
        self.algorithm.zero_grad()


def record(
    work: Work,
    snapshot: Callable[[], Snapshot] | None = None,
    generators: Iterable[torch.Generator] = (),
    warm_up: int = WARM_UP,
) -> torch.cuda.CUDAGraph:
    """Warms up, undoes that if told how, and records the work without doing it."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        before = snapshot() if snapshot is not None else None
        try:
            for number in range(warm_up):
                with synchronisation_refused() if number else nullcontext():
                    work()
        finally:
            if before is not None:
                before.restore()
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            work()
    current.wait_stream(side)
    return graph


@contextmanager
def synchronisation_refused() -> Iterator[None]:
    """Within it, an operation that waits for the GPU is an error: found before a recording, which it would break."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def changing(algorithm: Algorithm) -> Iterator[Tensor]:
    """The tensors of an algorithm that its steps may change."""
    yield from algorithm.parameters()
    yield from algorithm.buffers()
    yield from _moments(algorithm)


def _moments(algorithm: Algorithm) -> Iterator[Tensor]:
    for optimizer in algorithm.optimizers.values():
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
