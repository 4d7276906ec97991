"""Ctrl-C and SIGTERM as a flag that the training loop checks between steps, not an exception in the middle of one.

Around the loop, in the process that a user started, both raise KeyboardInterrupt.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SIGNALS = signal.SIGINT, signal.SIGTERM


class Interruption:
    """Within it, the first SIGINT or SIGTERM sets `requested`. A second Ctrl-C acts as it does outside.

    A second SIGTERM does nothing: a process may get one with its process group, and another from its driver.
    Interleaved trainings share one object: it handles signals from the first entry to the last exit.
    """

    def __init__(self) -> None:
        self.requested = False
        self._entered = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        self._entered += 1
        if self._entered == 1 and not self.requested and threading.current_thread() is threading.main_thread():
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
        self._entered -= 1
        if not self._entered:
            self._restore(*SIGNALS)


@contextmanager
def sigterm_as_keyboard_interrupt() -> Iterator[None]:
    """Within it, the first SIGTERM (of `timeout`, a container or a scheduler) acts like Ctrl-C, on which commands save.

    Later ones do nothing, so that saving is not cut short. A process that handles or ignores SIGTERM is left as it is.
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
