"""Progress of many runs: what runs, how far, and how long it still takes."""

import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from domainwise.algorithms import ALGORITHMS
from domainwise.records import Status
from domainwise.runs import Run
from domainwise.sweep.local import Event

PLAIN_SECONDS = 15.0
"""How often a line is printed where there is no terminal to draw on."""


def cost(run: Run) -> float:
    """A run's work in passes, the unit in which time left is estimated."""
    return run.steps * ALGORITHMS.find(run.algorithm).passes


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class Watch:
    """Follows events and keeps count."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.total = len(runs)
        self.statuses: dict[Run, Status] = {}
        self.work = dict.fromkeys(runs, 0.0)
        self.before = 0.0
        self.started = time.monotonic()

    def note(self, event: Event) -> None:
        first_sight = self.work[event.run] == 0.0
        self.work[event.run] = (
            cost(event.run) * (event.step + 1) / event.run.steps if not event.ended else cost(event.run)
        )
        if event.ended:
            self.statuses[event.run] = event.ended
            if first_sight and time.monotonic() - self.started < 0.5:  # had ended in an earlier call
                self.before += self.work[event.run]

    @property
    def time_left(self) -> str:
        done = sum(self.work.values()) - self.before
        left = sum(cost(run) - work for run, work in self.work.items())
        return f"about {duration((time.monotonic() - self.started) * left / done)} left" if done else "estimating"


def follow(runs: Sequence[Run], events: Iterable[Event], console: Console) -> dict[Run, Status]:
    """Shows the events as they come; returns how each run ended."""
    watch = Watch(runs)
    if console.is_terminal:
        _draw(watch, events, console)
    else:
        _print(watch, events, console)
    return watch.statuses


def _draw(watch: Watch, events: Iterable[Event], console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        overall = progress.add_task("all runs", total=sum(map(cost, watch.work)), note="starting")
        bars: dict[Run, TaskID] = {}
        for event in events:
            watch.note(event)
            note = f"{len(watch.statuses)}/{watch.total} done, {watch.time_left}"
            progress.update(overall, completed=sum(watch.work.values()), note=note)
            if event.ended and event.run in bars:
                progress.remove_task(bars.pop(event.run))
            elif not event.ended:
                if event.run not in bars:
                    bars[event.run] = progress.add_task(str(event.run), total=event.run.steps, note="")
                note = f"step {event.step}/{event.run.steps}"
                progress.update(bars[event.run], completed=event.step, note=note)


def _print(watch: Watch, events: Iterable[Event], console: Console) -> None:
    printed = time.monotonic()
    for event in events:
        watch.note(event)
        if time.monotonic() - printed > PLAIN_SECONDS:
            console.print(f"{len(watch.statuses)}/{watch.total} runs done, {watch.time_left}")
            printed = time.monotonic()
