"""Progress of many runs on standard error."""

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
)
from rich.text import Text

from domainwise.cli.output import errors_console, say
from domainwise.cli.progress import PLAIN_SECONDS, STEPS, interruptible
from domainwise.core.phrasing import duration

if TYPE_CHECKING:
    from domainwise.protocol.records import Status
    from domainwise.protocol.runs import Run
    from domainwise.sweeps.events import Event
    from domainwise.sweeps.status import BestSoFar

SETTLED_SECONDS = 3.0
"""How long to measure before estimating the time left."""


class RunsProgress:
    """Counts runs and estimates the time left from their events, in constant time per event."""

    def __init__(self, runs: "Sequence[Run]", out: Path) -> None:
        from domainwise.sweeps.events import total_passes

        self.out = out
        self.runs = len(runs)
        self.passes = {run: total_passes(run) for run in runs}
        self.passes_left = sum(self.passes[run] for run in runs)
        self.passes_done = 0.0
        self.active: dict[Run, int] = {}
        self.statuses: dict[Run, Status] = {}
        self.evaluations: dict[Run, BestSoFar] = {}
        """The selected evaluation of every run that is done."""
        self.best: BestSoFar | None = None
        self.started: float | None = None  # the time of the first event of a run: the start of workers does not count

    def update(self, event: "Event") -> None:
        run = event.run
        before = self.active.pop(run, -1) + 1
        after = run.steps if event.ended else event.step + 1
        passes = self.passes[run] * (after - before) / run.steps
        self.passes_left -= passes
        if not event.earlier and self.started is None:
            self.started = time.monotonic()
        elif not event.earlier:
            self.passes_done += max(0.0, passes)
        if event.ended:
            self.statuses[run] = event.ended
            if event.ended.status == "done":
                self._update_best(run)
        else:
            self.active[run] = event.step

    def _update_best(self, run: "Run") -> None:
        from domainwise.protocol.run_folder import RunFolder
        from domainwise.sweeps.reading import read_curves
        from domainwise.sweeps.status import best_evaluation

        for curve in read_curves(RunFolder(self.out, run)):
            best = best_evaluation(curve)
            if best is None:
                continue
            if not curve.average:
                self.evaluations[run] = best
            if self.best is None or best.score > self.best.score:
                self.best = best

    @property
    def line(self) -> str:
        failed = sum(status.status != "done" for status in self.statuses.values())
        remaining = self.runs - len(self.statuses) - len(self.active)
        left = "estimating the time left"
        elapsed = time.monotonic() - self.started if self.started is not None else 0.0
        if elapsed > SETTLED_SECONDS and self.passes_done:
            left = f"about {duration(elapsed * self.passes_left / self.passes_done)} left"
        done = len(self.statuses) - failed
        return f"{done}/{self.runs} done, {len(self.active)} running, {failed} failed, {remaining} remaining, {left}"

    @property
    def best_line(self) -> str:
        return str(self.best) if self.best else ""


def follow_runs(
    runs: "Sequence[Run]", events: "Generator[Event]", out: Path, *, as_table: bool = False
) -> "dict[Run, Status]":
    """Shows the progress of runs until all have ended, and returns how.

    At a terminal it is drawn as bars of the runs in progress, or `as_table`: accuracies by method and unseen domain,
    which fill in. Elsewhere a line is printed now and then.
    """
    progress = RunsProgress(runs, out)
    with interruptible("finished runs and checkpoints are kept"), closing(events):
        if not errors_console.is_terminal:
            _print(progress, events)
        elif as_table:
            _draw_table(progress, events)
        else:
            _draw_bars(progress, events)
    return progress.statuses


def _draw_table(progress: RunsProgress, events: "Iterable[Event]") -> None:
    from domainwise.cli.live_table import live_table

    def picture() -> Group:
        return Group(live_table(progress), Text(progress.line, style="bold"))

    with Live(picture(), console=errors_console, transient=True, refresh_per_second=8) as live:
        for event in events:
            progress.update(event)
            if not event.earlier:
                live.update(picture())


def _draw_bars(progress: RunsProgress, events: "Iterable[Event]") -> None:
    bars = Progress(TextColumn("{task.description}"), BarColumn(), STEPS)
    tasks: dict[Run, TaskID] = {}

    def picture() -> Group:
        return Group(Text(progress.line, style="bold"), bars, Text(progress.best_line, style="dim"))

    with Live(picture(), console=errors_console, transient=True, refresh_per_second=8) as live:
        for event in events:
            progress.update(event)
            if event.ended and event.run in tasks:
                bars.remove_task(tasks.pop(event.run))
            elif not event.ended:
                if event.run not in tasks:
                    tasks[event.run] = bars.add_task(escape(str(event.run)), total=event.run.steps)
                bars.update(tasks[event.run], completed=event.step + 1)
            if not event.earlier:
                live.update(picture())


def _print(progress: RunsProgress, events: "Iterable[Event]") -> None:
    printed = time.monotonic()
    for event in events:
        progress.update(event)
        if time.monotonic() - printed > PLAIN_SECONDS:
            say(progress.line, errors_console)
            printed = time.monotonic()
