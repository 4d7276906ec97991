"""Augmentation of a batch in three kernels: the images are read twice and written once, in channels_last."""
# ruff: noqa: ARG001 (functions that say shapes have all arguments of the operator)

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from domainwise.kernels.custom_op import custom_op
from domainwise.kernels.registry import accelerates, on_gpu

LUMA = (0.299, 0.587, 0.114)
ATTEMPTS = 10
"""Boxes drawn per crop, of which the first that fits into the image is taken."""
NUMBERS = (ATTEMPTS, ATTEMPTS, 2, 1, 4, 4, 1)
"""Uniform numbers per sample: for areas, ratios, the place of the crop, flip, order and factors of the jitter, grey."""
HUE = 3
"""The jitter's operations are brightness, contrast, saturation and hue: 0 to 3."""


def _applies(augmenter: Any, *_: Tensor) -> bool:
    return on_gpu(augmenter.mean) and not augmenter.augmentation.original_size


@accelerates("augment", when=_applies)
def fused_augment(augmenter: Any, images: Tensor, numbers: Tensor) -> Tensor:
    """The same, with the result in channels_last."""
    settings, constants = augmenter.augmentation, (augmenter.spread, augmenter.mean, augmenter.std)
    probabilities = (settings.flip, settings.grey)
    ranges = (settings.scale, settings.ratio, probabilities, augmenter.central)
    result: Tensor = torch.ops.domainwise.augment(images, numbers, *constants, *ranges)
    return result


def _compute(
    images: Tensor,
    numbers: Tensor,
    jitter: Tensor,
    mean: Tensor,
    std: Tensor,
    area: Sequence[float],
    ratio: Sequence[float],
    probabilities: Sequence[float],
    central: Sequence[int],
) -> Tensor:
    from domainwise.kernels import augment_triton

    size = (images.shape[2], images.shape[3])
    changes = augment_triton.table(numbers, jitter, area, ratio, probabilities, central, size)
    return augment_triton.transform(images.contiguous(), changes, mean, std)


@custom_op(_compute)
def augment(
    images: Tensor,
    numbers: Tensor,
    jitter: Tensor,
    mean: Tensor,
    std: Tensor,
    area: Sequence[float],
    ratio: Sequence[float],
    probabilities: Sequence[float],
    central: Sequence[int],
) -> Tensor:
    """What `Augmenter.augment` makes of uint8 images [N, 3, H, W] and their uniform numbers.

    `area` and `ratio` are the crop's ranges, `central` the box where none fits, `probabilities` those of flipped and of
    grey images, `jitter` [4] the ranges of the factors, and `mean` and `std` are the channels'.
    """
    return torch.empty_like(images, dtype=torch.float32, memory_format=torch.channels_last)
