"""Ctrl-C, SIGTERM and SIGHUP as a flag that the training loop checks between steps, not an exception in one.

Around the loop, in the process that a user started, all raise KeyboardInterrupt. SIGHUP comes when a terminal is
closed; where it is ignored, as after nohup, it stays ignored.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGHUP)
"""Signals besides Ctrl-C that end a command."""
SIGNALS = (signal.SIGINT, *STOPPING)


class Interruption:
    """Within it, the first of SIGNALS sets `requested`. A second Ctrl-C acts as it does outside.

    A second SIGTERM or SIGHUP does nothing: a process may get one with its group, and another from its driver.
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
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
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
def signals_as_keyboard_interrupt() -> Iterator[None]:
    """Within it, the first SIGTERM (of `timeout`, a container or a scheduler) or SIGHUP (a closed terminal) acts like
    Ctrl-C, on which commands save.

    Later ones do nothing, so that saving is not cut short. A signal that is handled or ignored is left as it is.
    """
    handled = [number for number in STOPPING if signal.getsignal(number) == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        handled = []

    def interrupt(*_: object) -> None:
        for number in handled:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
