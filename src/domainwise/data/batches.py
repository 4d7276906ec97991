"""Minibatches [E, B, C, H, W]: B images of each of E training domains, drawn with replacement on the device."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from domainwise.data.environments import Environments
from domainwise.data.streaming import DEPTH, Ahead
from domainwise.kernels import operation


@operation("draw_batch")
def draw_batch(
    environments: Environments, rows: Tensor, starts: Tensor, sizes: Tensor, u: Tensor
) -> tuple[Tensor, Tensor]:
    """Normalised images [E, B, C, H, W] and labels [E, B] that uniform numbers u [E, B] choose.

    Domain e's are of the `sizes[e]` rows from `rows[starts[e]]` on.
    """
    images, labels = environments.gather(rows[starts + (u * sizes).long()])
    return environments.normalise(images), labels


class Batches:
    """Draws batches from the given rows of each training domain, without a host synchronisation.

    `generator` decides the rows and nothing else, so that rows may be drawn ahead. `prepare` makes of uint8 images what
    the network sees; without it they are only normalised.
    """

    def __init__(
        self,
        environments: Environments,
        rows: Sequence[Tensor],
        batch_size: int,
        generator: torch.Generator,
        prepare: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        device = environments.device
        sizes = torch.tensor([len(r) for r in rows])
        self.environments, self.batch_size, self.generator = environments, batch_size, generator
        self.prepare = prepare
        self.rows = torch.cat(list(rows)).to(device)
        self.starts = (sizes.cumsum(0) - sizes).view(-1, 1).to(device)
        self.sizes = sizes.view(-1, 1).to(device, torch.float64)

    def draw(self) -> tuple[Tensor, Tensor]:
        """One batch: prepared images [E, B, C, H, W] and labels [E, B]."""
        self.advance()
        return self.current()

    def advance(self) -> None:
        """The part of drawing that the host has a hand in."""

    def settle(self) -> None:
        """Returns when nothing is being done in the background."""

    def current(self) -> tuple[Tensor, Tensor]:
        """The rest of it, which may be part of a captured step."""
        if self.prepare is None:
            return draw_batch(self.environments, self.rows, self.starts, self.sizes, self.uniform())
        images, labels = self.next()
        return self.prepare(images), labels

    def next(self) -> tuple[Tensor, Tensor]:
        """The next batch as it is stored: images, uint8, and labels."""
        return self.environments.gather(self.next_rows())

    def next_rows(self) -> Tensor:
        return self.rows[self.starts + (self.uniform() * self.sizes).long()]

    def uniform(self) -> Tensor:
        """All the randomness of a batch."""
        shape = (len(self.sizes), self.batch_size)
        return torch.rand(shape, generator=self.generator, dtype=torch.float64, device=self.rows.device)

    def state(self) -> Tensor:
        """What the batches still to be drawn depend on."""
        return self.generator.get_state()

    def load_state(self, state: Tensor) -> None:
        self.generator.set_state(state)


class StreamedBatches(Batches):
    """The same batches, gathered on the host a few ahead; their state is that of the batches taken, not of those.

    The batch taken is kept in the same place on the device, where captured steps look for it.
    """

    def __init__(
        self,
        environments: Environments,
        rows: Sequence[Tensor],
        batch_size: int,
        generator: torch.Generator,
        prepare: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(environments, rows, batch_size, generator, prepare)
        self.ahead = Ahead(environments.device)
        self.taken = generator.get_state()
        shape = (len(rows), batch_size)
        self.images = torch.empty(*shape, *environments.shape, dtype=environments.images.dtype, device=self.rows.device)
        self.labels = torch.empty(shape, dtype=environments.labels.dtype, device=self.rows.device)

    def advance(self) -> None:
        images, labels = self.next()
        self.images.copy_(images)
        self.labels.copy_(labels)

    def current(self) -> tuple[Tensor, Tensor]:
        prepare = self.prepare or self.environments.normalise
        return prepare(self.images), self.labels.clone()

    def settle(self) -> None:
        self.ahead.settle()

    def next(self) -> tuple[Tensor, Tensor]:
        while len(self.ahead.pending) < DEPTH:
            self.ahead.put(self._gather)
        images, labels, self.taken = self.ahead.get()
        self.ahead.put(self._gather)
        return images, labels

    def _gather(self) -> tuple[Tensor, Tensor, Tensor]:
        rows = self.next_rows()
        return *self.environments.gather(rows), self.generator.get_state()

    def state(self) -> Tensor:
        return self.taken

    def load_state(self, state: Tensor) -> None:
        self.ahead.clear()
        self.generator.set_state(state)
        self.taken = state


def batches_of(
    environments: Environments,
    rows: Sequence[Tensor],
    batch_size: int,
    generator: torch.Generator,
    prepare: Callable[[Tensor], Tensor] | None = None,
) -> Batches:
    """Batches from wherever the images live."""
    kind = StreamedBatches if environments.streamed else Batches
    return kind(environments, rows, batch_size, generator, prepare)
