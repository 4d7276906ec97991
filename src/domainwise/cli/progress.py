"""Progress of many runs: what runs, how far, how long it still takes, and the best so far."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from domainwise.core.phrasing import duration
from domainwise.protocol.records import RunFolder, Status
from domainwise.protocol.runs import Run
from domainwise.sweeps.collection import read_curve
from domainwise.sweeps.events import Event, total_passes
from domainwise.sweeps.status import BestSoFar, best_evaluation

SETTLED_SECONDS = 3.0
"""How long to watch before saying how long it will take."""
PLAIN_SECONDS = 15.0
"""How often a line is printed where there is no terminal to draw on."""


class Watch:
    """Follows events and keeps count, in constant time per event."""

    def __init__(self, runs: Sequence[Run], out: Path) -> None:
        self.out = out
        self.runs = len(runs)
        self.left = sum(map(total_passes, runs))
        self.worked = 0.0
        self.active: dict[Run, int] = {}
        self.statuses: dict[Run, Status] = {}
        self.best: BestSoFar | None = None
        self.started: float | None = None  # when the first word of a run came: starting workers is no measure of it

    def note(self, event: Event) -> None:
        run = event.run
        before = self.active.pop(run, -1) + 1
        after = run.steps if event.ended else event.step + 1
        work = total_passes(run) * (after - before) / run.steps
        self.left -= work
        if not event.earlier and self.started is None:
            self.started = time.monotonic()
        elif not event.earlier:
            self.worked += max(0.0, work)
        if event.ended:
            self.statuses[run] = event.ended
            if event.ended.status == "done":
                self._compare(run)
        else:
            self.active[run] = event.step

    def _compare(self, run: Run) -> None:
        found = best_evaluation(read_curve(RunFolder(self.out, run))[0])
        if found is not None and (self.best is None or found.score > self.best.score):
            self.best = found

    @property
    def line(self) -> str:
        failed = sum(status.status != "done" for status in self.statuses.values())
        remaining = self.runs - len(self.statuses) - len(self.active)
        left = "estimating the time left"
        elapsed = time.monotonic() - self.started if self.started is not None else 0.0
        if elapsed > SETTLED_SECONDS and self.worked:
            left = f"about {duration(elapsed * self.left / self.worked)} left"
        done = len(self.statuses) - failed
        return f"{done}/{self.runs} done, {len(self.active)} running, {failed} failed, {remaining} remaining, {left}"

    @property
    def best_line(self) -> str:
        return str(self.best) if self.best else ""


def follow(runs: Sequence[Run], events: Iterable[Event], console: Console, out: Path) -> dict[Run, Status]:
    """Shows the events as they come; returns how each run ended."""
    watch = Watch(runs, out)
    if console.is_terminal:
        _draw(watch, events, console)
    else:
        _print(watch, events, console)
    return watch.statuses


def _draw(watch: Watch, events: Iterable[Event], console: Console) -> None:
    bars = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("step {task.completed}/{task.total}"))
    tasks: dict[Run, TaskID] = {}

    def picture() -> Group:
        return Group(Text(watch.line, style="bold"), bars, Text(watch.best_line, style="dim"))

    with Live(picture(), console=console, transient=True, refresh_per_second=8) as live:
        for event in events:
            watch.note(event)
            if event.ended and event.run in tasks:
                bars.remove_task(tasks.pop(event.run))
            elif not event.ended:
                if event.run not in tasks:
                    tasks[event.run] = bars.add_task(escape(str(event.run)), total=event.run.steps)
                bars.update(tasks[event.run], completed=event.step + 1)
            if not event.earlier:
                live.update(picture())


def _print(watch: Watch, events: Iterable[Event], console: Console) -> None:
    printed = time.monotonic()
    for event in events:
        watch.note(event)
        if time.monotonic() - printed > PLAIN_SECONDS:
            console.print(watch.line, soft_wrap=True, highlight=False)
            printed = time.monotonic()
