"""A batch of normalised images as a Triton kernel: one program for some bytes of one image.

Every operation is rounded as by PyTorch on a GPU, which there divides by 255 by multiplying: the bits are the same.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _draw_kernel(
    u_at,
    rows_at,
    starts_at,
    sizes_at,
    images_at,
    labels_at,
    mean_at,
    std_at,
    x_at,
    y_at,
    per_domain,
    scale,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sample = tl.program_id(0)
    domain = sample // per_domain
    number = (tl.load(u_at + sample) * tl.load(sizes_at + domain)).to(tl.int64)
    row = tl.load(rows_at + tl.load(starts_at + domain) + number)
    if tl.program_id(1) == 0:
        tl.store(y_at + sample, tl.load(labels_at + row))
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < CHANNELS * PIXELS
    mean = tl.load(mean_at + at // PIXELS, mask=mask, other=0.0)
    std = tl.load(std_at + at // PIXELS, mask=mask, other=1.0)
    image = tl.load(images_at + row * (CHANNELS * PIXELS) + at, mask=mask, other=0).to(tl.float32)
    x = tl.div_rn(image * scale - mean, std)
    tl.store(x_at + sample.to(tl.int64) * (CHANNELS * PIXELS) + at, x, mask=mask)


def draw(
    u: Tensor, rows: Tensor, starts: Tensor, sizes: Tensor, images: Tensor, labels: Tensor, mean: Tensor, std: Tensor
) -> tuple[Tensor, Tensor]:
    """Images [E, B, C, H, W] and labels [E, B] of the rows that uniform numbers [E, B] mean."""
    x = torch.empty(*u.shape, *images.shape[1:], device=images.device)
    y = labels.new_empty(u.shape)
    channels, pixels = images.shape[1], images.shape[2] * images.shape[3]
    _draw_kernel[u.numel(), triton.cdiv(channels * pixels, BLOCK)](
        u,
        rows,
        starts,
        sizes,
        images,
        labels,
        mean,
        std,
        x,
        y,
        u.shape[1],
        1 / 255,
        PIXELS=pixels,
        CHANNELS=channels,
        BLOCK=BLOCK,
        enable_fp_fusion=False,
    )
    return x, y
