"""Ctrl-C and SIGTERM as a question the training loop asks between steps, not an exception in the middle of one.

Around it, in the process that a user started, both are the same exception.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SIGNALS = signal.SIGINT, signal.SIGTERM


class Interruption:
    """Within it, the first SIGINT or SIGTERM sets `requested`. A second Ctrl-C acts as it would have without it.

    A second SIGTERM does nothing: who stops a group of processes sends one to each, and a driver one to its workers.
    Trainings that take turns share one: it listens from the first entry to the last exit.
    """

    def __init__(self) -> None:
        self.requested = False
        self._inside = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        self._inside += 1
        if self._inside == 1 and not self.requested and threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._request)
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (a signal handler's arguments)
        self.requested = True
        self._restore(signal.SIGINT)

    def _restore(self, *numbers: int) -> None:
        for number in numbers:
            if number in self._previous:
                signal.signal(number, self._previous.pop(number))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside -= 1
        if not self._inside:
            self._restore(*SIGNALS)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Within it the first SIGTERM (`timeout`, a container or a scheduler that stops) is Ctrl-C, on which commands save.

    Others do nothing, so that saving is not cut short. Who ignores SIGTERM, or has a handler, keeps it.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
