"""Environments: named domains of images and labels, one uint8 tensor from the first decoding to the last step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from domainwise.errors import UserError, unknown
from domainwise.protocol.seeds import permutation

HELD_OUT = 0.2
"""The fraction of a domain that is its `out` split."""


@dataclass(frozen=True)
class Environments:
    """Images of several domains, one domain after another.

    A network sees (image / 255 - mean) / std, per channel; `low` and `high` are the legal range in those units.
    """

    name: str
    images: Tensor  # uint8 [N, C, H, W]
    labels: Tensor  # int64 [N]
    sizes: Mapping[str, int]  # images per domain, in order
    classes: tuple[str, ...]
    mean: Tensor  # [C, 1, 1]
    std: Tensor  # [C, 1, 1]
    absent: Mapping[str, str] = field(default_factory=dict)  # domains whose files are not here, and what to do

    @classmethod
    def from_arrays(
        cls,
        domains: Mapping[str, tuple[Any, Any]],
        *,
        name: str = "arrays",
        classes: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> "Environments":
        """From {domain: (uint8 images [n, C, H, W], labels [n] from 0)}; the network sees [0, 1] unless told."""
        if not domains:
            raise UserError(f"{name}: no domains given")
        images = {domain: _as_images(x, f"{name}/{domain}") for domain, (x, _) in domains.items()}
        labels = {domain: torch.as_tensor(np.asarray(y), dtype=torch.int64) for domain, (_, y) in domains.items()}
        for domain, x in images.items():
            if labels[domain].shape != x.shape[:1]:
                raise UserError(f"{name}/{domain}: {len(x)} images but labels of shape {tuple(labels[domain].shape)}")
        if len({x.shape[1:] for x in images.values()}) > 1:
            raise UserError(f"{name}: domains differ in image shape: {[tuple(x.shape[1:]) for x in images.values()]}")
        sizes = {domain: len(x) for domain, x in images.items()}
        every_image, every_label = torch.cat(list(images.values())), torch.cat(list(labels.values()))
        return cls.from_images(every_image, every_label, sizes, name=name, classes=classes, mean=mean, std=std)

    @classmethod
    def from_images(
        cls,
        images: Tensor,
        labels: Tensor,
        sizes: Mapping[str, int],
        *,
        name: str,
        classes: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> "Environments":
        """From all images [N, C, H, W], one domain after another, which are not copied, their labels [N] and counts."""
        for domain, size in sizes.items():
            if int(HELD_OUT * size) < 1:
                raise UserError(f"{name}/{domain}: {size} images; a domain needs at least 5 to be split")
        low, high = int(labels.min()), int(labels.max())
        names = tuple(classes) if classes else tuple(str(i) for i in range(high + 1))
        if low < 0 or high >= len(names):
            raise UserError(f"{name}: labels run from {low} to {high} for {len(names)} classes")
        channels = images.shape[1]
        return cls(
            name,
            images,
            labels,
            dict(sizes),
            names,
            torch.tensor(mean or [0.0] * channels).view(-1, 1, 1),
            torch.tensor(std or [1.0] * channels).view(-1, 1, 1),
        )

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape[1:])

    @property
    def low(self) -> Tensor:
        return (0 - self.mean) / self.std

    @property
    def high(self) -> Tensor:
        return (1 - self.mean) / self.std

    def normalise(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """What the network sees of uint8 images [..., C, H, W]."""
        return (images.to(dtype) / 255 - self.mean.to(dtype)) / self.std.to(dtype)

    def rows(self, domain: str) -> Tensor:
        """The row numbers of one domain's images."""
        if domain in self.absent:
            raise UserError(self.absent[domain])
        if domain not in self.sizes:
            raise unknown(f"domain of {self.name}", domain, self.sizes)
        start = 0
        for name, size in self.sizes.items():
            if name == domain:
                break
            start += size
        return torch.arange(start, start + self.sizes[domain])

    def split(self, domain: str, trial: int, held_out: float = HELD_OUT) -> dict[str, Tensor]:
        """The domain's rows, shuffled as (trial, domain) demands: the first int(0.2 n) are `out`, the rest `in`."""
        rows = self.rows(domain)
        rows = rows[permutation(len(rows), "split", trial, domain)]
        cut = int(held_out * len(rows))
        return {"out": rows[:cut], "in": rows[cut:]}

    def to(self, device: torch.device | str) -> "Environments":
        moved = {name: getattr(self, name).to(device) for name in ("images", "labels", "mean", "std")}
        return replace(self, **moved)


def _as_images(x: Any, where: str) -> Tensor:
    images = torch.as_tensor(np.asarray(x))
    if images.dtype != torch.uint8 or images.ndim != 4:
        kind = f"{str(images.dtype).removeprefix('torch.')} of shape {tuple(images.shape)}"
        raise UserError(f"{where}: images must be uint8 of shape [n, channels, height, width], not {kind}")
    return images
