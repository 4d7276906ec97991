"""Which groups of samples are held out: whole groups, with about the wanted share of every class of every domain."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


def hold_out_groups(
    groups: Integers, domains: Integers, labels: Integers, share: float, order: Callable[[int], Integers]
) -> npt.NDArray[np.bool_]:
    """Of every sample, whether its group is held out; the samples are described by three numbers each.

    Groups come one after the other in a random `order`. One is held out if that brings the held-out counts n_c nearer
    to the wanted ones, share * N_c: if it lowers sum_c (n_c - share N_c)^2 / N_c over every class c of every domain.
    Of a domain whose groups are all too large for that, the smallest is held out.
    """
    _, groups = np.unique(groups, return_inverse=True)
    cells = domains * (labels.max() + 1) + labels
    totals, counts = np.bincount(cells), np.zeros(cells.max() + 1)
    by_group = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[by_group], np.arange(groups.max() + 2))
    held_out = np.zeros(groups.max() + 1, bool)
    for group in order(len(held_out)):
        touched, added = np.unique(cells[by_group[starts[group] : starts[group + 1]]], return_counts=True)
        missing = share * totals[touched] - counts[touched]
        if (added * (added - 2 * missing) / totals[touched]).sum() < 0:
            held_out[group] = True
            counts[touched] += added
    for domain in np.unique(domains):
        inside, sizes = np.unique(groups[domains == domain], return_counts=True)
        if len(inside) > 1 and not held_out[inside].any():
            held_out[inside[sizes.argmin()]] = True
    return held_out[groups]
