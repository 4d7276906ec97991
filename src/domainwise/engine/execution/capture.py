"""A step as CUDA graphs: one launch by the host in place of hundreds.

One graph holds the whole step: drawing the batch, normalising, ascent, forward, backward, optimiser. Changes over time
happen outside it, in `Algorithm.schedule`, which fills buffers that the graph reads or chooses a phase; every phase has
its own graph. The same code runs captured and eager.

A graph can be recorded at any point of a training: warm-up steps are undone, random numbers included, so that captured
and eager training give the same results.
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
"""Steps before a recording: libraries choose their algorithms, kernels are compiled, memory is allocated."""

Procedure = Callable[[], None]


class CapturedStep:
    """Records an algorithm's update as a CUDA graph the first time it is made in a phase, and replays it from then on.

    An update that cannot be recorded compiled is recorded uncompiled; one that cannot be recorded at all runs eagerly.
    One warning gives the reason. `tensors` and `generators` are changed by the update besides the algorithm's own;
    `prepare` turns a batch's images into the network's inputs; `settle` returns when nothing else uses the device.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        tensors: Sequence[Tensor] = (),
        generators: Sequence[torch.Generator] = (),
        prepare: object = None,
        compile: bool = False,
        settle: Procedure = lambda: None,
    ) -> None:
        self.algorithm, self.prepare, self.compile, self.settle = algorithm, prepare, compile, settle
        self.tensors, self.generators = tensors, (algorithm.noise, *generators)
        self.graphs: dict[str, torch.cuda.CUDAGraph | None] = {}

    def __call__(self, update: Procedure) -> None:
        phase = self.algorithm.phase
        if phase not in self.graphs:
            self.graphs[phase] = self._record(update)
        graph = self.graphs[phase]
        if graph is None:
            update()
        else:
            graph.replay()

    def discard_graphs(self) -> None:
        """After loading a state: graphs refer to the tensors they were recorded with."""
        self.graphs.clear()

    def _record(self, update: Procedure) -> torch.cuda.CUDAGraph | None:
        """The graph of the current phase, compiled if possible; None if it cannot be recorded."""
        self.settle()
        name = type(self.algorithm).__name__
        if self.compile and not self.algorithm.differentiates_twice:
            try:
                with compiled(self.algorithm, self.prepare):
                    return record(update, self._snapshot, self.generators)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                log.warning("%s is captured without being compiled: %s", name, first_line(error))
        try:
            return record(update, self._snapshot, self.generators)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            log.warning("%s is not captured, and slower for it: %s", name, first_line(error))
        return None

    def _snapshot(self) -> "Snapshot":
        return Snapshot(self.algorithm, self.tensors, self.generators)


class Snapshot:
    """The values of everything that steps change, to be restored in place."""

    def __init__(self, algorithm: Algorithm, tensors: Iterable[Tensor], generators: Iterable[torch.Generator]) -> None:
        self.algorithm = algorithm
        self.values = [(tensor, tensor.detach().clone()) for tensor in (*changing_tensors(algorithm), *tensors)]
        default = [torch.default_generator]
        if algorithm.problem.low.is_cuda:
            default.append(torch.cuda.default_generators[algorithm.problem.low.get_device()])
        self.random = [(generator, generator.get_state()) for generator in (*default, *generators)]

    @torch.no_grad()
    def restore(self) -> None:
        """Restores all values; moments that the optimisers have created since become zero, as Adam starts."""
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
    procedure: Procedure,
    snapshot: Callable[[], Snapshot] | None = None,
    generators: Iterable[torch.Generator] = (),
    warm_up: int = WARM_UP,
) -> torch.cuda.CUDAGraph:
    """Warms up, restores the snapshot if there is one, and records the procedure without running it."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        before = snapshot() if snapshot is not None else None
        try:
            for number in range(warm_up):
                with forbid_synchronisation() if number else nullcontext():
                    procedure()
        finally:
            if before is not None:
                before.restore()
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            procedure()
    current.wait_stream(side)
    return graph


@contextmanager
def forbid_synchronisation() -> Iterator[None]:
    """Within it, an operation that waits for the GPU raises an error: it would break a recording."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def changing_tensors(algorithm: Algorithm) -> Iterator[Tensor]:
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
