"""Metrics of predicted probabilities beyond accuracy, computed on the device without waiting for it.

    balanced accuracy    mean recall over the classes that occur
    macro F1             mean over the same classes of 2 TP / (samples + predictions of the class)
    AUROC                one class against the rest, mean over the classes that have both; ties count half
    calibration error    sum over 15 bins of equal width of |confidence - accuracy|, by their shares of the samples:
                         Guo et al. 2017, https://arxiv.org/abs/1706.04599
    worst class          lowest recall of a class that occurs
    worst group          lowest accuracy of a group that has enough samples, where groups are known

All splits are measured at once: an operation per split costs more than its arithmetic. Shapes depend on shapes alone,
so that an evaluation can be captured. All sums are of whole numbers: the same predictions give the same bits.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from domainwise.kernels import operation
from domainwise.kernels.metrics import AT_ONCE, BINS, UNIT
from domainwise.protocol.metrics import MEASURED, SMALLEST_GROUP
from domainwise.protocol.records import SplitScores


def measure(
    probabilities: Tensor, labels: Tensor, sizes: Sequence[int] | None = None, groups: Tensor | None = None
) -> Tensor:
    """The metrics `MEASURED` of each split, [splits, 6] in float64; NaN where one is not defined.

    `probabilities` [N, classes] are those of splits of these sizes after one another; by default there is one. `groups`
    [N] are numbers of the samples' groups, below the size of their split.
    """
    lengths = [len(labels)] if sizes is None else list(sizes)
    split = torch.cat([labels.new_full((length,), number) for number, length in enumerate(lengths)])
    return _of_splits(probabilities, labels, split, lengths, groups)


def scores_of(probabilities: Tensor, labels: Tensor, groups: Tensor | None = None) -> SplitScores:
    """All metrics of these samples; `groups` [N] are any numbers of the samples' groups."""
    known = None if groups is None else groups.unique(return_inverse=True)[1]
    tiny = torch.finfo(probabilities.dtype).tiny  # of a class that is ruled out
    true = probabilities.gather(1, labels[:, None]).clamp_min(tiny)
    accuracy = (probabilities.argmax(1) == labels).double().mean()
    measured = measure(probabilities, labels, groups=known)[0].tolist()
    return SplitScores.of([float(accuracy), float(-true.double().log().mean()), *measured])


@operation("metrics")
def _of_splits(
    probabilities: Tensor, labels: Tensor, split: Tensor, lengths: Sequence[int], groups: Tensor | None
) -> Tensor:
    """The metrics of each split, where `split` [N] has the numbers of the samples' splits."""
    splits, classes = len(lengths), probabilities.shape[1]
    confidence, predicted = probabilities.max(1)
    correct = predicted == labels
    group = split * classes + labels
    ones = torch.ones_like(labels)
    samples, hits, predictions = (
        _sums(index, values, splits * classes).view(splits, classes).double()
        for index, values in ((group, ones), (group, correct.long()), (split * classes + predicted, ones))
    )
    occurs = samples > 0
    recall = hits / samples
    count = occurs.sum(1)
    values = {
        "balanced_accuracy": recall.where(occurs, 0).sum(1) / count,
        "macro_f1": (2 * hits / (samples + predictions)).where(occurs, 0).sum(1) / count,
        "auroc": _auroc(probabilities, split, group, samples),
        "calibration_error": _calibration_error(confidence, correct, split, samples.sum(1)),
        "worst_class": recall.where(occurs, torch.inf).amin(1),
        "worst_group": _worst_group(correct, split, lengths, groups),
    }
    return torch.stack([values[name] for name in MEASURED], 1)


def _sums(index: Tensor, values: Tensor, count: int) -> Tensor:
    """The sums of the whole numbers that share an index."""
    return torch.zeros(count, dtype=torch.int64, device=index.device).scatter_add_(0, index, values)


def _ascending(keys: Tensor) -> Tensor:
    """Sorted; on a CPU by numpy, whose vector instructions are ten times as fast as torch there."""
    return keys.sort().values if keys.device.type != "cpu" else torch.from_numpy(np.sort(keys.numpy()))


def _worst_group(correct: Tensor, split: Tensor, lengths: Sequence[int], groups: Tensor | None) -> Tensor:
    """The lowest accuracy of a group in each split; infinite where none has enough samples, or none is known."""
    lowest = torch.full((len(lengths),), torch.inf, device=correct.device, dtype=torch.float64)
    if groups is None:
        return lowest
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    group = groups + torch.cat([groups.new_full((n,), start) for n, start in zip(lengths, starts, strict=True)])
    samples, hits = (_sums(group, ones, len(group)) for ones in (torch.ones_like(group), correct.long()))
    accuracy = (hits / samples.clamp(min=1)).double().where(samples >= SMALLEST_GROUP, torch.inf)
    return lowest.scatter_reduce(0, split, accuracy[group], "amin")


def _calibration_error(confidence: Tensor, correct: Tensor, split: Tensor, samples: Tensor) -> Tensor:
    """The expected calibration error of each split; bin b has confidences in (b / 15, (b + 1) / 15]."""
    confidence = confidence.double()
    bins = (BINS * confidence).ceil().clamp(1, BINS).nan_to_num(BINS).long() - 1
    gaps = (UNIT * (confidence - correct.double())).round().nan_to_num(0).long()
    sums = _sums(split * BINS + bins, gaps, len(samples) * BINS)
    return sums.view(-1, BINS).abs().sum(1).double() / UNIT / samples


def _auroc(probabilities: Tensor, split: Tensor, group: Tensor, samples: Tensor) -> Tensor:
    """The mean over classes of the share of (sample of the class, other sample) that its probability orders rightly.

    For a class with n of N samples it is (sum of their mid-ranks - n (n + 1) / 2) / (n (N - n)). The bits of a positive
    float order as the float does. So one sort of the whole numbers (split and class, bits of the probability) ranks all
    probabilities of all classes and splits, and a sample needs only its rank by the probability of its own class.
    """
    total, classes = probabilities.shape
    bits = probabilities.float().contiguous().view(torch.int32).long()
    starts = torch.arange(samples.numel(), device=group.device) << 32
    own = (group << 32) + bits.gather(1, (group - split * classes)[:, None])[:, 0]
    ranks = torch.zeros_like(own)
    step = max(1, AT_ONCE // max(1, total))
    for first in range(0, classes, step):
        columns = torch.arange(first, min(first + step, classes), device=group.device)
        keys = (((split * classes)[:, None] + columns) << 32) + bits[:, first : first + step]
        ordered = _ascending(keys.flatten())
        before = torch.searchsorted(ordered, starts)[group]  # keys of the splits and classes before one's own
        below, up_to = (torch.searchsorted(ordered, own, right=right) - before for right in (False, True))
        ranks += below + up_to  # none where one's own class is not among these
    twice = _sums(group, ranks + 1, samples.numel()).view_as(samples)
    others = samples.sum(1, keepdim=True) - samples
    both = (samples > 0) & (others > 0)
    areas = (twice - samples * (samples + 1)) / (2 * samples * others)
    return areas.where(both, 0).sum(1) / both.sum(1)
