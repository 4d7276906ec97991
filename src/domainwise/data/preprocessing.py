"""How raw inputs become what a network sees: shared by the data, a saved model and its exported files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Preprocessing:
    """Shape, normalisation and legal range of a network's inputs, and the classes of its outputs.

    Of an image, uint8 [C, H, W], the network sees (image / 255 - mean) / std, per channel: the legal range is that of
    black to white. Of a vector, float [D], it sees (vector - mean) / std, per column: every number is legal.
    """

    shape: tuple[int, ...]  # of one input: [C, H, W], or [D]
    classes: tuple[str, ...]
    mean: Tensor  # [C, 1, 1], or [D]
    std: Tensor  # [C, 1, 1], or [D]
    window: tuple[int, int] | None = None  # the grey values of 16-bit files that are read as black and white

    @classmethod
    def from_values(
        cls,
        shape: Sequence[int],
        classes: Sequence[str],
        mean: Sequence[float],
        std: Sequence[float],
        dtype: torch.dtype = torch.float32,
    ) -> "Preprocessing":
        """From one number per channel or column."""
        per_channel = (-1, *[1] * (len(shape) - 1))
        mean_tensor, std_tensor = (torch.tensor(values, dtype=dtype).view(per_channel) for values in (mean, std))
        return cls(tuple(shape), tuple(classes), mean_tensor, std_tensor)

    @property
    def vectors(self) -> bool:
        """Whether the inputs are rows of numbers, not images."""
        return len(self.shape) == 1

    @property
    def low(self) -> Tensor:
        """The smallest legal input, as the network sees it."""
        return self._bound(0.0, -torch.inf)

    @property
    def high(self) -> Tensor:
        """The largest legal input, as the network sees it."""
        return self._bound(1.0, torch.inf)

    def _bound(self, pixel: float, number: float) -> Tensor:
        if self.vectors:
            return self.mean.new_full(self.shape, number, dtype=torch.float32)
        return (pixel - self.mean) / self.std

    def normalise(self, inputs: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """What the network sees of uint8 images [..., C, H, W], or of vectors [..., D]."""
        if self.vectors:
            return ((inputs - self.mean) / self.std).to(dtype)
        return (inputs.to(dtype) / 255 - self.mean.to(dtype)) / self.std.to(dtype)

    def to(self, target: torch.device | torch.dtype) -> "Preprocessing":
        return replace(self, mean=self.mean.to(target), std=self.std.to(target))
