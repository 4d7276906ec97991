"""The cores of this process, and the number of CPU threads that torch computes with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Within it, torch divides an operation among this many threads, whatever the machine's number of cores.

    Sums depend on it in their last bits.
    """
    import torch

    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
