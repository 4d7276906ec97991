"""Augmentation as Triton kernels: see `domainwise.data.augment` for what is computed.

Each sample has one operation that must see the whole image before it changes a pixel: contrast, which blends with the
mean luma. So images are read twice and written once. The first kernel crops, does what comes before the contrast and
sums the luma; the second does everything and writes the result. In between nothing is stored but the sums, one for each
block of pixels, which are added in a fixed order, so that results can be repeated. What happens to a sample stands in
its row of a table, made from its uniform numbers by a kernel of its own.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from domainwise.kernels.augment import ATTEMPTS, HUE, LUMA, NUMBERS

BLOCK = 1024
"""Pixels that one program handles."""
COLUMNS = (4, 1, 1, 1, 4, 4)
"""Of the table: top, left, height and width of the crop; whether it is flipped; whether it is made grey; the contrast's
place in the order; the operation at each of the four places; and its factor, or turn of the hue."""

_ATTEMPTS = tl.constexpr(ATTEMPTS)
_NUMBERS, _COLUMNS = tl.constexpr(sum(NUMBERS)), tl.constexpr(sum(COLUMNS))
_U_AREA, _U_RATIO, _U_PLACE, _U_FLIP, _U_ORDER, _U_FACTOR, _U_GREY = map(tl.constexpr, accumulate((0, *NUMBERS[:-1])))
_BOX, _FLIP, _GREY, _CONTRAST_AT, _KIND, _VALUE = map(tl.constexpr, accumulate((0, *COLUMNS[:-1])))
_CONTRAST, _SATURATION, _HUE = tl.constexpr(1), tl.constexpr(2), tl.constexpr(HUE)
_RED, _GREEN, _BLUE = (tl.constexpr(weight) for weight in LUMA)


@triton.jit
def _rounded(x):
    """To the nearest whole number, half to even: from 2^23 on float32 has no others."""
    return (x + 8388608.0) - 8388608.0


@triton.jit
def _placed(number, length, size):
    """Where a crop of this length begins."""
    return tl.minimum(tl.floor(number * (size - length + 1)), size - length)


@triton.jit
def _table_kernel(
    numbers_at,
    jitter_at,
    table_at,
    area_low,
    area_range,
    ratio_low,
    ratio_range,
    flip_share,
    grey_share,
    central_top,
    central_left,
    central_height,
    central_width,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    numbers_at += tl.program_id(0) * _NUMBERS
    row_at = table_at + tl.program_id(0) * _COLUMNS

    attempt = tl.arange(0, 16)
    drawn = attempt < _ATTEMPTS
    area = (area_low + area_range * tl.load(numbers_at + _U_AREA + attempt, mask=drawn, other=0.0)) * (HEIGHT * WIDTH)
    ratio = tl.exp(ratio_low + ratio_range * tl.load(numbers_at + _U_RATIO + attempt, mask=drawn, other=0.0))
    widths, heights = _rounded(tl.sqrt(area * ratio)), _rounded(tl.sqrt(area / ratio))
    fits = drawn & (widths >= 1) & (widths <= WIDTH) & (heights >= 1) & (heights <= HEIGHT)
    first = tl.min(tl.where(fits, attempt, 16), 0)
    height = tl.sum(tl.where(attempt == first, heights, 0.0), 0)
    width = tl.sum(tl.where(attempt == first, widths, 0.0), 0)
    top = _placed(tl.load(numbers_at + _U_PLACE), height, HEIGHT)
    left = _placed(tl.load(numbers_at + _U_PLACE + 1), width, WIDTH)
    tl.store(row_at + _BOX, tl.where(first < 16, top, central_top))
    tl.store(row_at + _BOX + 1, tl.where(first < 16, left, central_left))
    tl.store(row_at + _BOX + 2, tl.where(first < 16, height, central_height))
    tl.store(row_at + _BOX + 3, tl.where(first < 16, width, central_width))

    tl.store(row_at + _FLIP, (tl.load(numbers_at + _U_FLIP) < flip_share).to(tl.float32))
    tl.store(row_at + _GREY, (tl.load(numbers_at + _U_GREY) < grey_share).to(tl.float32))

    kind = tl.arange(0, 4)
    number = tl.load(numbers_at + _U_ORDER + kind)
    before = number[None, :] < number[:, None]
    before |= (number[None, :] == number[:, None]) & (kind[None, :] < kind[:, None])
    place = tl.sum(before.to(tl.int32), 1)
    change = (2 * tl.load(numbers_at + _U_FACTOR + kind) - 1) * tl.load(jitter_at + kind)
    tl.store(row_at + _CONTRAST_AT, tl.sum(tl.where(kind == _CONTRAST, place, 0), 0).to(tl.float32))
    tl.store(row_at + _KIND + place, kind.to(tl.float32))
    tl.store(row_at + _VALUE + place, tl.where(kind == _HUE, change, tl.maximum(1 + change, 0.0)))


@triton.jit
def _between(index, start, length, SIZE: tl.constexpr):
    """The two lines of an image that a line of its crop lies between, and how far it is from the first.

    In units of half a line of the result the place is a whole number: (2 index + 1) length - size of 2 size.
    """
    place = tl.minimum(tl.maximum((2 * index + 1) * length - SIZE, 0), 2 * SIZE * (length - 1))
    line = place // (2 * SIZE)
    share = (place - line * (2 * SIZE)).to(tl.float32) * (1 / (2 * SIZE))
    return start + line, start + tl.minimum(line + 1, length - 1), share


@triton.jit
def _byte(at):
    return tl.load(at).to(tl.float32)


@triton.jit
def _bilinear(channel_at, above, below, left, right, down, along):
    """One channel of some pixels, in [0, 1]."""
    first, second = _byte(channel_at + above + left), _byte(channel_at + above + right)
    third, fourth = _byte(channel_at + below + left), _byte(channel_at + below + right)
    upper, lower = first + (second - first) * along, third + (fourth - third) * along
    return (upper + (lower - upper) * down) * (1 / 255)


@triton.jit
def _cropped(images_at, row_at, sample, pixel, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """The channels of some pixels of a sample's crop, flipped if it is to be."""
    top, left = tl.load(row_at + _BOX).to(tl.int32), tl.load(row_at + _BOX + 1).to(tl.int32)
    height, width = tl.load(row_at + _BOX + 2).to(tl.int32), tl.load(row_at + _BOX + 3).to(tl.int32)
    column = pixel % WIDTH
    column = tl.where(tl.load(row_at + _FLIP) > 0, WIDTH - 1 - column, column)
    above, below, down = _between(pixel // WIDTH, top, height, HEIGHT)
    first, second, along = _between(column, left, width, WIDTH)
    red_at = images_at + sample.to(tl.int64) * (3 * HEIGHT * WIDTH)
    green_at = red_at + HEIGHT * WIDTH
    red = _bilinear(red_at, above * WIDTH, below * WIDTH, first, second, down, along)
    green = _bilinear(green_at, above * WIDTH, below * WIDTH, first, second, down, along)
    blue = _bilinear(green_at + HEIGHT * WIDTH, above * WIDTH, below * WIDTH, first, second, down, along)
    return red, green, blue


@triton.jit
def _luma(red, green, blue):
    return _RED * red + _GREEN * green + _BLUE * blue


@triton.jit
def _clamped(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _turned(red, green, blue, turn):
    """`Augmenter.turn_hue`.

    The largest channel is found by comparing channels, never by `== high`: the compiler may compute a channel twice,
    rounded differently. Where two channels nearly agree, either choice gives the same hue.
    """
    high = tl.maximum(tl.maximum(red, green), blue)
    chroma = high - tl.minimum(tl.minimum(red, green), blue)
    other = tl.where(green >= blue, blue - red + 2 * chroma, red - green + 4 * chroma)
    sector = tl.where((red >= green) & (red >= blue), green - blue, other)
    hue = sector / tl.maximum(chroma, 1e-9) + 6 * turn
    hue -= 6 * tl.floor(hue * (1 / 6))
    red = high - chroma * _clamped(2 - tl.abs(hue - 3))
    green = high - chroma * _clamped(tl.abs(hue - 2) - 1)
    blue = high - chroma * _clamped(tl.abs(hue - 4) - 1)
    return red, green, blue


@triton.jit
def _changed(red, green, blue, row_at, place, mean):
    """After the operation at one place of the sample's order; `mean` is what contrast blends with."""
    kind, value = tl.load(row_at + _KIND + place), tl.load(row_at + _VALUE + place)
    if kind == _HUE:
        red, green, blue = _turned(red, green, blue, value)
    else:
        grey = tl.where(kind == _SATURATION, _luma(red, green, blue), tl.where(kind == _CONTRAST, mean, 0.0))
        offset = (1 - value) * grey
        red, green, blue = (
            _clamped(value * red + offset),
            _clamped(value * green + offset),
            _clamped(value * blue + offset),
        )
    return red, green, blue


@triton.jit
def _sum_kernel(images_at, table_at, sums_at, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    sample, block = tl.program_id(0), tl.program_id(1)
    row_at = table_at + sample * _COLUMNS
    pixel = block * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < HEIGHT * WIDTH
    red, green, blue = _cropped(images_at, row_at, sample, tl.where(inside, pixel, 0), HEIGHT, WIDTH)
    contrast = tl.load(row_at + _CONTRAST_AT)
    for place in range(3):
        if place < contrast:
            red, green, blue = _changed(red, green, blue, row_at, place, 0.0)
    luma = tl.where(inside, _luma(red, green, blue), 0.0)
    tl.store(sums_at + sample * tl.num_programs(1) + block, tl.sum(luma, 0))


@triton.jit
def _write_kernel(
    images_at,
    table_at,
    sums_at,
    mean_at,
    std_at,
    result_at,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    sample, block = tl.program_id(0), tl.program_id(1)
    row_at = table_at + sample * _COLUMNS
    pixel = block * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < HEIGHT * WIDTH
    red, green, blue = _cropped(images_at, row_at, sample, tl.where(inside, pixel, 0), HEIGHT, WIDTH)
    other = tl.arange(0, BLOCKS)
    blocks = tl.num_programs(1)
    sums = tl.load(sums_at + sample * blocks + other, mask=other < blocks, other=0.0)
    luma = tl.sum(sums, 0) * (1 / (HEIGHT * WIDTH))
    for place in range(4):
        red, green, blue = _changed(red, green, blue, row_at, place, luma)
    if tl.load(row_at + _GREY) > 0:
        grey = _luma(red, green, blue)
        red, green, blue = grey, grey, grey
    channel = tl.arange(0, 4)  # the fourth is not stored
    values = tl.reshape(tl.join(tl.join(red, blue), tl.join(green, blue)), [BLOCK, 4])
    mean = tl.load(mean_at + channel, mask=channel < 3, other=0.0)
    std = tl.load(std_at + channel, mask=channel < 3, other=1.0)
    result_at += sample.to(tl.int64) * (3 * HEIGHT * WIDTH) + 3 * pixel[:, None] + channel[None, :]
    tl.store(result_at, (values - mean[None, :]) * (1 / std)[None, :], mask=inside[:, None] & (channel < 3)[None, :])


def table(
    numbers: Tensor,
    jitter: Tensor,
    area: Sequence[float],
    ratio: Sequence[float],
    shares: Sequence[float],
    central: Sequence[int],
    size: tuple[int, int],
) -> Tensor:
    """What happens to each sample, [N, sum(COLUMNS)]."""
    result = numbers.new_empty(len(numbers), sum(COLUMNS))
    _table_kernel[(len(numbers),)](
        numbers,
        jitter,
        result,
        area[0],
        area[1] - area[0],
        math.log(ratio[0]),
        math.log(ratio[1] / ratio[0]),
        *shares,
        *central,
        HEIGHT=size[0],
        WIDTH=size[1],
        num_warps=1,
    )
    return result


def transform(images: Tensor, changes: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Images [N, 3, H, W] changed as their rows of the table say, normalised, in channels_last."""
    samples, _, height, width = images.shape
    result = torch.empty(images.shape, device=images.device, memory_format=torch.channels_last)
    blocks = triton.cdiv(height * width, BLOCK)
    sums = changes.new_empty(samples, blocks)
    _sum_kernel[samples, blocks](images, changes, sums, HEIGHT=height, WIDTH=width, BLOCK=BLOCK)
    _write_kernel[samples, blocks](
        images,
        changes,
        sums,
        mean,
        std,
        result,
        HEIGHT=height,
        WIDTH=width,
        BLOCK=BLOCK,
        BLOCKS=triton.next_power_of_2(blocks),
    )
    return result
