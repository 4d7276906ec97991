"""The metrics of `engine.metrics` as Triton kernels: whole numbers are counted, samples are ranked, ratios are taken.

Counts are added in any order by atomic operations, which whole numbers do not mind: the same predictions give the same
bits. Additions to the same total wait for each other, so a program sums its own samples first.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from domainwise.kernels.metrics import BINS, UNIT
from domainwise.protocol.metrics import MEASURED, SMALLEST_GROUP

BLOCK = 128
"""Samples of a program."""
COLUMNS = 16
"""Classes, bins or groups that a program reads at once; not fewer than there are bins."""


@triton.jit
def _add(totals_at, split, column, values, inside, columns, COLUMNS: tl.constexpr):
    """Adds the samples' values to the totals [splits, columns]; a program adds to each total once."""
    for current in range(tl.min(split, 0), tl.max(split, 0) + 1):
        chosen = inside & (split == current)
        for first in range(0, columns, COLUMNS):
            place = first + tl.arange(0, COLUMNS)
            mine = chosen[:, None] & (column[:, None] == place[None, :])
            total = tl.sum(tl.where(mine, values[:, None], 0), 0)
            tl.atomic_add(totals_at + current * columns + place, total, mask=(place < columns) & (total != 0))


@triton.jit
def _count_kernel(
    probabilities_at,
    confidence_at,
    predicted_at,
    labels_at,
    split_at,
    groups_at,
    keys_at,
    samples_at,
    hits_at,
    predictions_at,
    gaps_at,
    members_at,
    member_hits_at,
    samples,
    classes,
    longest,
    BINS: tl.constexpr,
    UNIT: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Counts per split and class, gaps per split and bin, counts per split and group; and the keys that are sorted."""
    sample = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = sample < samples
    label = tl.load(labels_at + sample, mask=inside, other=0)
    split = tl.load(split_at + tl.minimum(sample, samples - 1))
    predicted = tl.load(predicted_at + sample, mask=inside, other=0)
    one = tl.full([BLOCK], 1, tl.int64)
    hit = (predicted == label).to(tl.int64)
    _add(samples_at, split, label, one, inside, classes, COLUMNS)
    _add(hits_at, split, label, hit, inside, classes, COLUMNS)
    _add(predictions_at, split, predicted, one, inside, classes, COLUMNS)

    confidence = tl.load(confidence_at + sample, mask=inside, other=0.0).to(tl.float64)
    number = confidence == confidence
    bins = tl.minimum(tl.maximum(tl.ceil(BINS * confidence), 1.0), BINS * 1.0)
    bins = tl.where(number, bins, BINS * 1.0).to(tl.int64) - 1
    gap = tl.where(number, tl.floor(UNIT * (confidence - hit.to(tl.float64)) + 0.5), 0.0).to(tl.int64)
    _add(gaps_at, split, bins, gap, inside, BINS, COLUMNS)

    if GROUPS:
        group = tl.load(groups_at + sample, mask=inside, other=0)
        tl.atomic_add(members_at + split * longest + group, one, mask=inside)
        tl.atomic_add(member_hits_at + split * longest + group, hit, mask=inside)

    for first in range(0, classes, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        both = inside[:, None] & (column < classes)[None, :]
        at = sample.to(tl.int64)[:, None] * classes + column[None, :]
        bits = tl.load(probabilities_at + at, mask=both, other=0.0).to(tl.int32, bitcast=True).to(tl.int64)
        tl.store(keys_at + at, (((split * classes)[:, None] + column[None, :]) << 32) + bits, mask=both)


@triton.jit
def _place(ordered_at, key, count, steps, AFTER: tl.constexpr):
    """How many of the sorted numbers are smaller than each key; AFTER: or equal to it."""
    low, high = tl.zeros_like(key), tl.zeros_like(key) + count
    for _ in range(steps):
        middle = (low + high) // 2
        value = tl.load(ordered_at + middle, mask=low < high, other=0)
        below = (value <= key) if AFTER else (value < key)
        low, high = tl.where((low < high) & below, middle + 1, low), tl.where((low < high) & ~below, middle, high)
    return low


@triton.jit
def _rank_kernel(
    ordered_at,
    probabilities_at,
    labels_at,
    split_at,
    twice_at,
    samples,
    classes,
    count,
    steps,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Adds up, per split and class, twice the mid-ranks of its samples by their probability of that class."""
    sample = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = sample < samples
    label = tl.load(labels_at + sample, mask=inside, other=0)
    split = tl.load(split_at + tl.minimum(sample, samples - 1))
    group = split * classes + label
    own = tl.load(probabilities_at + sample.to(tl.int64) * classes + label, mask=inside, other=0.0)
    key = (group << 32) + own.to(tl.int32, bitcast=True).to(tl.int64)
    before = _place(ordered_at, group << 32, count, steps, False)
    rank = _place(ordered_at, key, count, steps, False) + _place(ordered_at, key, count, steps, True) - 2 * before
    _add(twice_at, split, label, rank + 1, inside, classes, COLUMNS)


@triton.jit
def _ratio_kernel(
    samples_at,
    hits_at,
    predictions_at,
    twice_at,
    gaps_at,
    members_at,
    member_hits_at,
    metrics_at,
    classes,
    longest,
    BINS: tl.constexpr,
    UNIT: tl.constexpr,
    SMALLEST_GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The metrics of one split from its counts."""
    split = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, COLUMNS)
    size = split * 0
    for first in range(0, classes, COLUMNS):
        column = first + lane
        size += tl.sum(tl.load(samples_at + split * classes + column, mask=column < classes, other=0), 0)

    nothing = tl.zeros([COLUMNS], tl.float64)
    occurring, recalls, f1s, separable, areas = nothing, nothing, nothing, nothing, nothing
    worst_class = nothing + float("inf")
    for first in range(0, classes, COLUMNS):
        column = first + lane
        at, known = split * classes + column, column < classes
        samples = tl.load(samples_at + at, mask=known, other=0)
        hits = tl.load(hits_at + at, mask=known, other=0).to(tl.float64)
        predictions = tl.load(predictions_at + at, mask=known, other=0)
        twice = tl.load(twice_at + at, mask=known, other=0)
        occurs = samples > 0
        recall = hits / tl.where(occurs, samples, 1).to(tl.float64)
        occurring += tl.where(occurs, 1.0, 0.0)
        recalls += tl.where(occurs, recall, 0.0)
        worst_class = tl.minimum(worst_class, tl.where(occurs, recall, float("inf")))
        f1s += tl.where(occurs, 2 * hits / tl.where(occurs, samples + predictions, 1).to(tl.float64), 0.0)
        both = occurs & (samples < size)
        pairs = tl.where(both, 2 * samples * (size - samples), 1)
        separable += tl.where(both, 1.0, 0.0)
        areas += tl.where(both, (twice - samples * (samples + 1)).to(tl.float64) / pairs.to(tl.float64), 0.0)

    bin = tl.arange(0, COLUMNS)
    gaps = tl.load(gaps_at + split * BINS + bin, mask=bin < BINS, other=0)
    worst_group = nothing + float("inf")
    if GROUPS:
        for first in range(0, longest, COLUMNS):
            at, known = split * longest + first + lane, first + lane < longest
            members = tl.load(members_at + at, mask=known, other=0)
            counts = members >= SMALLEST_GROUP
            hits = tl.load(member_hits_at + at, mask=known, other=0).to(tl.float64)
            accuracy = hits / tl.where(counts, members, 1).to(tl.float64)
            worst_group = tl.minimum(worst_group, tl.where(counts, accuracy, float("inf")))

    count = tl.sum(occurring, 0)
    to = metrics_at + split * 6
    tl.store(to, tl.sum(recalls, 0) / count)
    tl.store(to + 1, tl.sum(f1s, 0) / count)
    tl.store(to + 2, tl.sum(areas, 0) / tl.sum(separable, 0))
    tl.store(to + 3, tl.sum(tl.abs(gaps), 0).to(tl.float64) / UNIT / size.to(tl.float64))
    tl.store(to + 4, tl.min(worst_class, 0))
    tl.store(to + 5, tl.min(worst_group, 0))


def metrics(
    probabilities: Tensor, labels: Tensor, split: Tensor, lengths: Sequence[int], groups: Tensor | None
) -> Tensor:
    samples, classes = probabilities.shape
    splits, longest = len(lengths), max(lengths)
    given = probabilities.float().contiguous()
    confidence, predicted = given.max(1)
    keys = torch.empty(samples * classes, dtype=torch.int64, device=given.device)
    sizes = [splits * classes] * 4 + [splits * BINS] + [0 if groups is None else splits * longest] * 2
    counts = torch.zeros(sum(sizes), dtype=torch.int64, device=given.device).split(sizes)
    of_classes, gaps, of_groups = counts[:3], counts[4], counts[5:]
    twice, grouped, grid = counts[3], groups is not None, (triton.cdiv(samples, BLOCK),)
    _count_kernel[grid](
        given,
        confidence,
        predicted,
        labels,
        split,
        groups,
        keys,
        *of_classes,
        gaps,
        *of_groups,
        samples,
        classes,
        longest,
        BINS=BINS,
        UNIT=UNIT,
        GROUPS=grouped,
        BLOCK=BLOCK,
        COLUMNS=COLUMNS,
    )
    ordered, steps = keys.sort().values, len(keys).bit_length()
    _rank_kernel[grid](
        ordered, given, labels, split, twice, samples, classes, len(keys), steps, BLOCK=BLOCK, COLUMNS=COLUMNS
    )
    values = torch.empty(splits, len(MEASURED), dtype=torch.float64, device=given.device)
    _ratio_kernel[splits,](
        *of_classes,
        twice,
        gaps,
        *of_groups,
        values,
        classes,
        longest,
        BINS=BINS,
        UNIT=UNIT,
        SMALLEST_GROUP=SMALLEST_GROUP,
        GROUPS=grouped,
        COLUMNS=COLUMNS,
    )
    return values
