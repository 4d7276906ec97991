"""Sums that several kernels take, in float32 and in a fixed order, so that results can be repeated."""

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS, ROWS = 8, 128
"""Of a block of the table that is summed."""


@triton.jit
def by_group(values, BLOCK_CHANNELS: tl.constexpr, PER_GROUP: tl.constexpr):
    """Each channel's value replaced by the sum over its group."""
    sums = tl.sum(tl.reshape(values, [BLOCK_CHANNELS // PER_GROUP, PER_GROUP]), 1)
    spread = tl.broadcast_to(sums[:, None], [BLOCK_CHANNELS // PER_GROUP, PER_GROUP])
    return tl.reshape(spread, [BLOCK_CHANNELS])


@triton.jit
def _sum_kernel(table_at, sums_at, rows, columns, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & (column < columns)[None, :]
        total += tl.load(table_at + row[:, None] * columns + column[None, :], mask=mask, other=0.0)
    tl.store(sums_at + column, tl.sum(total, 0), mask=column < columns)


def sum_rows(table: Tensor) -> Tensor:
    """The sum of a table [N, ...] over its first dimension."""
    sums = table.new_empty(table.shape[1:], dtype=torch.float32)
    columns = sums.numel()
    _sum_kernel[triton.cdiv(columns, COLUMNS),](table, sums, len(table), columns, COLUMNS=COLUMNS, ROWS=ROWS)
    return sums
