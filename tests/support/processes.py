"""Real processes for tests, started quickly."""

import multiprocessing
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

PRELOADED = ["domainwise.sweeps.local", "pytest"]
"""What a worker imports: a second or two that only the server spends."""
LISTEN = "0A"


def quick_context() -> ForkServerContext:
    """Its processes are forked from a server that has imported everything and computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@contextmanager
def forked_workers() -> Iterator[None]:
    """Worker processes are forked instead of spawned: two seconds less for each."""
    context = quick_context()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", lambda *_: context)
        yield


def quick_server() -> str:
    """Where the server behind `quick_context` listens."""
    quick_context()
    forkserver.ensure_running()
    return forkserver._forkserver._forkserver_address


def share_server(address: str) -> None:
    """Lets this process, itself from that server, start others from it: one of its own would import all again."""
    forkserver._forkserver._forkserver_address = address
    forkserver._forkserver.ensure_running = lambda: None


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


def listening(root: int) -> set[str]:
    """The addresses, in hexadecimal, that a process and its descendants listen at (Linux)."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pid, rest = stat.parent.name, stat.read_text().rsplit(")", 1)[1].split()
            parents[int(pid)] = int(rest[1])
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    sockets = set()
    for pid in family:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                sockets.add(str(descriptor.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == LISTEN and f"socket:[{line.split()[9]}]" in sockets:
                found.add(local.partition(":")[0])
    return found
