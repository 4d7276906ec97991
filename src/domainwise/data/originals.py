"""Images at their own sizes, of which training crops are taken, so that these are resampled once.

An image whose short side is more than 8/7 of what the network reads (256 for 224 pixels) is first reduced to that: a
crop of usual size is then about as large as what the network reads.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.data.images.cache import decode
from domainwise.data.images.remote import Location

LIMIT = 8 / 7
"""The largest short side, as a multiple of the network's."""


@dataclass(frozen=True)
class Originals:
    """uint8 RGB images of different sizes, one after another in one tensor, and the place of each in it."""

    pixels: Tensor  # uint8 [bytes]; an image is [3, height, width] from `start` on
    places: Tensor  # int64 [N, 3]: start, height, width

    @classmethod
    def of(cls, pixels: Tensor, sizes: Sequence[tuple[int, int]]) -> "Originals":
        """From the height and width of each."""
        shapes = torch.tensor(sizes, dtype=torch.int64).view(-1, 2)
        lengths = 3 * shapes.prod(1)
        return cls(pixels, torch.cat([(lengths.cumsum(0) - lengths).unsqueeze(1), shapes], 1))

    @cached_property
    def slot(self) -> int:
        """The number of bytes of the largest image."""
        return 3 * int(self.places[:, 1:].prod(1).max())

    def to(self, device: torch.device) -> "Originals":
        return Originals(self.pixels.to(device), self.places.to(device))

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The places [..., 3] of rows [...], and the pixels that they are in."""
        return self.places[rows], self.pixels

    def stage(self, rows: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """The same with the pixels of these rows only, copied to the device: as many bytes for every choice of rows."""
        chosen = self.places[rows.cpu()]
        staged = torch.empty(rows.numel(), self.slot, dtype=torch.uint8, pin_memory=device.type == "cuda")
        source, target = self.pixels.numpy(), staged.numpy()
        for number, (start, height, width) in enumerate(chosen.view(-1, 3).tolist()):
            length = 3 * height * width
            target[number, :length] = source[start : start + length]
        chosen[..., 0] = self.slot * torch.arange(rows.numel()).view(rows.shape)
        return chosen.to(device), staged.view(-1).to(device, non_blocking=True)


def decode_originals(
    files: Sequence[Location], image_size: int, *, left_out: Set[int] = frozenset(), **where: Any
) -> Originals:
    """The files at their own sizes, for networks that read `image_size` pixels, but for those that are `left_out`.

    `where` are further arguments of `images.cache.decode`.
    """
    found = decode(files, round(LIMIT * image_size), original=True, **where)
    if found.bad.keys() != left_out:
        raise UserError(f"the images of {where['label']} have changed since they were loaded: start again")
    return Originals.of(found.images, found.sizes)
