"""Real processes for tests, started quickly."""

import multiprocessing
import time
from collections.abc import Collection
from multiprocessing.context import ForkServerContext
from pathlib import Path

PRELOADED = ["domainwise.sweep.local", "torch._dynamo", "pytest"]
"""What a worker imports, the optimiser's first step included: two seconds that only the server spends."""


def quick_context() -> ForkServerContext:
    """Its processes are forked from a server that has imported everything and computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def alive(pid: int) -> bool:
    """Whether a process still runs, whoever its parent is."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def all_gone(pids: Collection[int], within: float = 5.0) -> bool:
    """Whether none of these processes runs any more, or will after a moment: an exit is not instantaneous."""
    deadline = time.monotonic() + within
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))
