"""Progress of decoding and of evaluations: the library shows nothing, the command line installs a bar.

A hook and not an argument: data are loaded deep inside trainings, sweeps, models and analyses, all of which would have
to pass the argument on.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int], None]
"""Called with the number of files, or of what else is counted, that were done since the last call."""


@contextmanager
def silent(description: str, total: int) -> Iterator[Advance]:  # noqa: ARG001 (shows neither)
    yield lambda _: None


show: Callable[[str, int], AbstractContextManager[Advance]] = silent
"""Shows the progress of a task: (description, their number) -> context manager that yields the callback."""

announce: Callable[[str], None] = logging.getLogger("domainwise").info
"""Says, once, where decoded images are kept and how much room they take."""
