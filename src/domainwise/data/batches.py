"""Minibatches [E, B, C, H, W]: B images of each of E training domains, drawn with replacement on the device."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.data.images.cache import available_memory
from domainwise.data.streaming import DEPTH, Prefetcher
from domainwise.kernels import operation


@operation("draw_batch")
def draw_batch(
    environments: Environments, rows: Tensor, starts: Tensor, sizes: Tensor, u: Tensor
) -> tuple[Tensor, Tensor]:
    """Normalised images [E, B, C, H, W] and labels [E, B] that uniform numbers u [E, B] choose.

    The rows of domain e are the `sizes[e]` ones from `rows[starts[e]]` on.
    """
    images, labels = environments.gather(rows[starts + (u * sizes).long()])
    return environments.normalise(images), labels


class Batches:
    """Draws batches from the given rows of each training domain, without a host synchronisation.

    `generator` draws the rows and nothing else, so that rows may be prefetched. `prepare` turns uint8 images, or the
    places of originals and their pixels, into network inputs; by default images are only normalised. `chances` are the
    probabilities of the rows of each domain; by default they are equal.
    """

    def __init__(
        self,
        environments: Environments,
        rows: Sequence[Tensor],
        batch_size: int,
        generator: torch.Generator,
        prepare: Callable[..., Tensor] | None = None,
        chances: Sequence[Tensor] | None = None,
    ) -> None:
        device = environments.device
        sizes = torch.tensor([len(r) for r in rows])
        self.environments, self.batch_size, self.generator = environments, batch_size, generator
        self.prepare = prepare
        self.rows = torch.cat(list(rows)).to(device)
        self.starts = (sizes.cumsum(0) - sizes).view(-1, 1).to(device)
        self.sizes = sizes.view(-1, 1).to(device, torch.float64)
        self.bounds = None if chances is None else _upper_bounds(chances).to(device)

    def draw(self) -> tuple[Tensor, Tensor]:
        """One batch: prepared images [E, B, C, H, W] and labels [E, B]."""
        self.advance()
        return self.current()

    def advance(self) -> None:
        """The part of a draw that involves the host; it comes before `current`."""

    def settle(self) -> None:
        """Returns when no background work is running."""

    def current(self) -> tuple[Tensor, Tensor]:
        """The part of a draw that may be captured."""
        if self.prepare is None:
            return draw_batch(self.environments, self.rows, self.starts, self.sizes, self.uniform())
        *images, labels = self.next()
        return self.prepare(*images), labels

    def next(self) -> tuple[Tensor, ...]:
        """The next batch before preparation: what `prepare` takes, and labels."""
        return self.environments.gather_for_training(self.next_rows())

    def next_rows(self) -> Tensor:
        return self.rows[self.starts + (self.uniform() * self.sizes).long()]

    def uniform(self) -> Tensor:
        """All the randomness of a batch: numbers u [E, B] in [0, 1) that mean the rows number floor(u n_e).

        With chances, the interval of the sums of chances that a uniform number falls into is the number of its row.
        """
        shape = (len(self.sizes), self.batch_size)
        u = torch.rand(shape, generator=self.generator, dtype=torch.float64, device=self.rows.device)
        if self.bounds is None:
            return u
        return (torch.searchsorted(self.bounds, u, right=True) + 0.5) / self.sizes

    def state(self) -> Tensor:
        """The random state that later batches depend on."""
        return self.generator.get_state()

    def load_state(self, state: Tensor) -> None:
        self.generator.set_state(state)


class StreamedBatches(Batches):
    """The same batches, prefetched from the host; their state is that of the last batch used, not of the prefetched.

    Each batch is copied to the same memory on the device, which captured steps read.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.prefetcher = Prefetcher(self.environments.device)
        self.taken = self.generator.get_state()
        self.held: tuple[Tensor, ...] = ()

    def advance(self) -> None:
        batch = self.next()
        self.held = self.held or tuple(map(torch.empty_like, batch))
        for mine, new in zip(self.held, batch, strict=True):
            mine.copy_(new)

    def current(self) -> tuple[Tensor, Tensor]:
        *images, labels = self.held
        prepare: Callable[..., Tensor] = self.prepare or self.environments.normalise
        return prepare(*images), labels.clone()

    def settle(self) -> None:
        self.prefetcher.settle()

    def next(self) -> tuple[Tensor, ...]:
        while len(self.prefetcher.pending) < DEPTH:
            self.prefetcher.put(self._gather)
        *batch, self.taken = self.prefetcher.get()
        self.prefetcher.put(self._gather)
        return tuple(batch)

    def _gather(self) -> tuple[Tensor, ...]:
        return *super().next(), self.generator.get_state()

    def state(self) -> Tensor:
        return self.taken

    def load_state(self, state: Tensor) -> None:
        self.prefetcher.clear()
        self.generator.set_state(state)
        self.taken = state


def _upper_bounds(chances: Sequence[Tensor]) -> Tensor:
    """[E, N] of the intervals of [0, 1) that are as wide as the chances; beyond the last row of a domain it is 2."""
    bounds = torch.full((len(chances), max(map(len, chances))), 2.0, dtype=torch.float64)
    for of_domain, values in zip(bounds, chances, strict=True):
        sums = values.double().cumsum(0)
        of_domain[: len(sums)] = (sums / sums[-1]).contiguous()
    return bounds


def batches_of(
    environments: Environments,
    rows: Sequence[Tensor],
    batch_size: int,
    generator: torch.Generator,
    prepare: Callable[..., Tensor] | None = None,
    chances: Sequence[Tensor] | None = None,
) -> Batches:
    """Batches of images that are resident on the device, or streamed to it; one that exceeds the memory is an error."""
    needed, available = 4 * len(rows) * batch_size * math.prod(environments.shape), available_memory()
    if environments.device.type == "cpu" and 0 < available < needed:
        what = f"{len(rows)} x {batch_size:,} inputs of shape {'x'.join(map(str, environments.shape))}"
        room = f"{needed / 2**30:,.1f} GiB of memory, and {available / 2**30:,.1f} GiB are available"
        raise UserError(f"a batch of {what} takes at least {room}: choose a smaller batch_size or image size")
    kind = StreamedBatches if environments.streamed else Batches
    return kind(environments, rows, batch_size, generator, prepare, chances)
