"""Augmentation of a batch in three kernels: the images are read twice and written once, in channels_last."""

from collections.abc import Sequence

import torch
from torch import Tensor, library


@library.custom_op("domainwise::augment", mutates_args=())
def augment(
    images: Tensor,
    numbers: Tensor,
    jitter: Tensor,
    mean: Tensor,
    std: Tensor,
    area: Sequence[float],
    ratio: Sequence[float],
    shares: Sequence[float],
    central: Sequence[int],
) -> Tensor:
    """What `Augmenter.augment` makes of uint8 images [N, 3, H, W] and their uniform numbers.

    `area` and `ratio` are the crop's ranges, `central` the box where none fits, `shares` those of flipped and of grey
    images, `jitter` [4] the ranges of the factors, and `mean` and `std` are the channels'.
    """
    from domainwise.kernels import augment_triton

    size = (images.shape[2], images.shape[3])
    changes = augment_triton.table(numbers, jitter, area, ratio, shares, central, size)
    return augment_triton.transform(images.contiguous(), changes, mean, std)


@augment.register_fake
def _(images: Tensor, *_: object) -> Tensor:
    return torch.empty_like(images, dtype=torch.float32, memory_format=torch.channels_last)
