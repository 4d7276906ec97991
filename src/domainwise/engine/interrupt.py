"""Ctrl-C and SIGTERM as a question the training loop asks between steps, not an exception in the middle of one."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interruption:
    """Within it, the first SIGINT or SIGTERM sets `requested`; a second one acts as it would have without it.

    Trainings that take turns share one: it listens from the first entry to the last exit.
    """

    def __init__(self) -> None:
        self.requested = False
        self._inside = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        self._inside += 1
        if self._inside == 1 and not self.requested and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (a signal handler's arguments)
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside -= 1
        if not self._inside:
            self._restore()
