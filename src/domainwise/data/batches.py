"""Minibatches [E, B, C, H, W]: B images of each of E training domains, drawn with replacement on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from domainwise.data.environments import Environments


class Batches:
    """Draws batches from the given rows of each training domain, without a host synchronisation."""

    def __init__(
        self,
        environments: Environments,
        rows: Sequence[Tensor],
        batch_size: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        device = environments.images.device
        sizes = torch.tensor([len(r) for r in rows])
        self.environments, self.batch_size, self.generator, self.dtype = environments, batch_size, generator, dtype
        self.rows = torch.cat(list(rows)).to(device)
        self.starts = (sizes.cumsum(0) - sizes).view(-1, 1).to(device)
        self.sizes = sizes.view(-1, 1).to(device, torch.float64)

    def draw(self) -> tuple[Tensor, Tensor]:
        """One batch: normalised images [E, B, C, H, W] and labels [E, B]."""
        shape = (len(self.sizes), self.batch_size)
        u = torch.rand(shape, generator=self.generator, dtype=torch.float64, device=self.rows.device)
        rows = self.rows[self.starts + (u * self.sizes).long()]
        environments = self.environments
        return environments.normalise(environments.images[rows], self.dtype), environments.labels[rows]
