"""All metrics of an evaluation by three kernels and a sort: in plain operations they are many for so few numbers."""

from collections.abc import Sequence

from torch import Tensor

from domainwise.kernels.registry import accelerates, on_gpu

AT_ONCE = 1 << 24
"""Probabilities that are sorted together: with many classes and samples, a few classes at a time."""
BINS = 15
"""Of confidence, for the calibration error."""
UNIT = 2.0**36
"""Gaps between confidence and accuracy are added as multiples of 1 / UNIT, which does not depend on their order."""


def _applies(probabilities: Tensor, *_: object) -> bool:
    return on_gpu(probabilities) and 0 < probabilities.numel() <= AT_ONCE


@accelerates("metrics", when=_applies)
def metrics(
    probabilities: Tensor, labels: Tensor, split: Tensor, lengths: Sequence[int], groups: Tensor | None
) -> Tensor:
    """The metrics of each split, [splits, 6] in float64, as `engine.metrics` defines them."""
    from domainwise.kernels import metrics_triton

    return metrics_triton.metrics(probabilities, labels, split, lengths, groups)
