"""What the command line would show of the progress of a task."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from domainwise.data.images import progress
from domainwise.data.images.progress import Advance

Shown = dict[str, list[int]]
"""{description: [total, done]}"""


def recorded_progress(monkeypatch: pytest.MonkeyPatch) -> Shown:
    shown: Shown = {}

    @contextmanager
    def record(description: str, total: int) -> Iterator[Advance]:
        counts = shown[description] = [total, 0]

        def advance(number: int) -> None:
            counts[1] += number

        yield advance

    monkeypatch.setattr(progress, "show", record)
    return shown
