"""Metrics of predicted probabilities beyond accuracy, computed on the device without waiting for it.

    balanced accuracy    mean recall over the classes that occur
    macro F1             mean over the same classes of 2 TP / (samples + predictions of the class)
    AUROC                one class against the rest, mean over the classes that have both; ties count half
    calibration error    sum over 15 bins of equal width of |confidence - accuracy|, by their shares of the samples:
                         Guo et al. 2017, https://arxiv.org/abs/1706.04599
    worst class          lowest recall of a class that occurs

Shapes depend on shapes alone, so that an evaluation can be captured. Sums of floats have a fixed order and the others
are of whole numbers: the same predictions give the same bits.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from domainwise.protocol.metrics import MEASURED

BINS = 15
AT_ONCE = 1 << 24
"""Probabilities that are sorted at once: with many classes and samples, a few classes at a time."""


def measure(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The metrics `MEASURED`, [5] in float64, of probabilities [N, classes]; NaN where one is not defined."""
    classes = probabilities.shape[1]
    confidence, predicted = probabilities.max(1)
    correct = predicted == labels
    samples, predictions = _counts(labels, classes), _counts(predicted, classes)
    hits = torch.zeros_like(samples).scatter_add_(0, labels, correct.to(samples.dtype))
    occurs = samples > 0
    recall = hits / samples
    count = occurs.sum()
    values = {
        "balanced_accuracy": recall.where(occurs, 0).sum() / count,
        "macro_f1": (2 * hits / (samples + predictions)).where(occurs, 0).sum() / count,
        "auroc": auroc(probabilities, labels, samples),
        "calibration_error": calibration_error(confidence, correct),
        "worst_class": recall.where(occurs, torch.inf).min(),
    }
    return torch.stack([values[name] for name in MEASURED])


def _counts(labels: Tensor, classes: int) -> Tensor:
    """How often each class occurs, in float64, whose sums of ones are exact."""
    ones = torch.ones(labels.shape, dtype=torch.float64, device=labels.device)
    return ones.new_zeros(classes).scatter_add_(0, labels, ones)


def calibration_error(confidence: Tensor, correct: Tensor) -> Tensor:
    """The expected calibration error; bin b has confidences in (b / 15, (b + 1) / 15]."""
    bins = (BINS * confidence.double()).ceil().clamp(1, BINS)
    gaps = confidence.double() - correct.double()
    numbers = torch.arange(1, BINS + 1, device=bins.device)[:, None]
    return gaps.where(bins == numbers, 0).sum(1).abs().sum() / len(confidence)


def auroc(probabilities: Tensor, labels: Tensor, samples: Tensor) -> Tensor:
    """The mean over classes of the share of (sample of the class, other sample) that its probability orders rightly.

    For a class with n of N samples it is (sum of their mid-ranks - n (n + 1) / 2) / (n (N - n)). A sample needs only
    its rank by the probability of its own class: the columns are sorted, and N binary searches find the ranks.
    """
    total, classes = probabilities.shape
    own = probabilities.gather(1, labels[:, None])[:, 0]
    ranks = torch.zeros(total, dtype=torch.float64, device=labels.device)
    step = max(1, AT_ONCE // max(1, total))
    for first in range(0, classes, step):
        columns = probabilities[:, first : first + step].T.contiguous().sort(1).values
        here = (labels >= first) & (labels < first + step)
        column = (labels - first).clamp(0, len(columns) - 1)
        below, up_to = _search(columns, column, own, torch.lt), _search(columns, column, own, torch.le)
        ranks = ranks.where(~here, (below + up_to + 1).double() / 2)
    sums = torch.zeros_like(samples).scatter_add_(0, labels, ranks)  # of halves: exact in any order
    others = total - samples
    both = (samples > 0) & (others > 0)
    areas = (sums - samples * (samples + 1) / 2) / (samples * others)
    return areas.where(both, 0).sum() / both.sum()


def _search(columns: Tensor, column: Tensor, values: Tensor, before: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """How many numbers of its sorted column, a row of `columns`, come before each value."""
    low, high = torch.zeros_like(column), torch.full_like(column, columns.shape[1])
    flat, start = columns.flatten(), column * columns.shape[1]
    for _ in range(columns.shape[1].bit_length()):
        middle = (low + high) // 2
        at = flat[start + middle.clamp_max(columns.shape[1] - 1)]
        further = before(at, values) & (low < high)
        low, high = torch.where(further, middle + 1, low), torch.where(further, high, middle)
    return low
