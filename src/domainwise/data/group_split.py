"""Which groups of samples are held out: whole groups, with about the wanted share of every class of every domain."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

PASSES = 10
TINY = 1e-9
"""A gain that may be rounding is none: the choice ends."""

Integers = npt.NDArray[np.int64]


def hold_out_groups(
    groups: Integers, domains: Integers, labels: Integers, share: float, order: Callable[[int], Integers]
) -> npt.NDArray[np.bool_]:
    """Of every sample, whether its group is held out; the samples are described by three numbers each.

    Groups come one after the other in a random `order`, several times. One is held out, or no longer, if that brings
    the held-out counts n_c nearer to the wanted ones, share * N_c: if it lowers sum_c (n_c - share N_c)^2 / N_c over
    every class c of every domain. Of a domain whose groups are all too large for that, the smallest is held out.
    """
    _, groups = np.unique(groups, return_inverse=True)
    cells = domains * (labels.max() + 1) + labels
    totals, counts = np.bincount(cells), np.zeros(cells.max() + 1)
    by_group = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[by_group], np.arange(groups.max() + 2))
    held_out = np.zeros(groups.max() + 1, bool)
    parts = [by_group[start:end] for start, end in pairwise(starts.tolist())]
    members = [np.unique(cells[part], return_counts=True) for part in parts]
    for _ in range(PASSES):
        before = held_out.copy()
        for group in order(len(held_out)):
            touched, size = members[group]
            change = -size if held_out[group] else size
            missing = share * totals[touched] - counts[touched]
            if (change * (change - 2 * missing) / totals[touched]).sum() < -TINY:
                held_out[group] = not held_out[group]
                counts[touched] += change
        if (held_out == before).all():
            break
    for domain in np.unique(domains):
        inside, sizes = np.unique(groups[domains == domain], return_counts=True)
        if len(inside) > 1 and not held_out[inside].any():
            held_out[inside[sizes.argmin()]] = True
    return held_out[groups]
