"""The number of CPU threads that torch computes with: sums depend on it in their last bits."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Within it, torch divides an operation among this many threads, whatever the machine's number of cores."""
    import torch

    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
