"""The progress of a sweep, read from its folder alone: from any terminal, on any machine that shares it; no torch."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domainwise.core.locks import lock_holder
from domainwise.core.phrasing import counted, duration
from domainwise.data.catalogue import usual_selection
from domainwise.protocol.metrics import ACCURACY
from domainwise.protocol.records import Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import RULES, Curve, Method
from domainwise.sweeps.collection import Collection, collect
from domainwise.sweeps.published import is_published


@dataclass(frozen=True)
class SweepProgress:
    """How many runs are in which state, the failures, and an estimate of the time left."""

    total: int
    done: int
    running: int
    diverged: tuple[Status, ...]
    failed: tuple[Status, ...]
    seconds_left: float | None

    @property
    def remaining(self) -> int:
        return self.total - self.done - self.running - len(self.diverged) - len(self.failed)

    def __str__(self) -> str:
        parts = [f"{self.done} done", f"{self.running} running", f"{len(self.failed)} failed"]
        if self.diverged:
            parts.append(f"{len(self.diverged)} diverged")
        parts.append(f"{self.remaining} remaining")
        left = f", about {duration(self.seconds_left)} left" if self.seconds_left is not None else ""
        return f"{counted(self.total, 'run')}: {', '.join(parts)}{left}"


def sweep_progress(folder: Path, runs: Sequence[Run], collection: Collection | None = None) -> SweepProgress:
    """From the folder as it is now, or as it was collected. The time left follows from runs that are done.

    A run that cannot be read has failed, whatever it says of its end.
    """
    collection = collect(folder) if collection is None else collection
    begun = {run.id for run in collection.runs} if not is_published(folder) else set()
    taken = {curve.run.id: curve.seconds for curve in collection.curves if curve.seconds is not None}
    statuses: list[Status] = []
    seconds: dict[str, float] = defaultdict(float)  # of each algorithm, over the runs that are done
    steps: dict[str, int] = defaultdict(int)
    steps_left: dict[str, int] = defaultdict(int)
    running = 0
    for run in runs:
        status = collection.statuses.get(run.id)
        if run.id in collection.damaged:
            status = Status(run.id, RunFolder(folder, run).last_step() or 0, "failed", collection.damaged[run.id])
        if status is None:
            steps_left[run.algorithm] += run.steps
            running += run.id in begun and lock_holder(folder / run.id) is not None
            continue
        statuses.append(status)
        if status.status == "done" and run.id in taken:
            seconds[run.algorithm] += taken[run.id]
            steps[run.algorithm] += run.steps
    seconds_left = None
    if steps and steps_left:
        measured = {algorithm: (seconds[algorithm], steps[algorithm]) for algorithm in steps}
        over_all = (sum(seconds.values()), sum(steps.values()))
        times = [(left, *measured.get(algorithm, over_all)) for algorithm, left in steps_left.items()]
        seconds_left = sum(left * spent / done for left, spent, done in times) / max(1, running)
    return _progress(runs, statuses, running, seconds_left)


def _progress(
    runs: Sequence[Run], statuses: Sequence[Status], running: int = 0, seconds_left: float | None = None
) -> SweepProgress:
    by_state = {state: tuple(s for s in statuses if s.status == state) for state in ("done", "diverged", "failed")}
    return SweepProgress(
        len(runs), len(by_state["done"]), running, by_state["diverged"], by_state["failed"], seconds_left
    )


@dataclass(frozen=True)
class BestSoFar:
    """The best evaluation of a run by its dataset's selection rule, and the accuracy on the unseen domains there."""

    run: Run
    method: Method
    rule: str
    score: float
    unseen: dict[str, float]

    def __str__(self) -> str:
        name = f"{self.method}, draw {self.run.draw}, trial {self.run.trial}"
        unseen = [f"{100 * accuracy:.1f} % on {domain}" for domain, accuracy in self.unseen.items()]
        return f"best by {self.rule} validation so far: {name}: {100 * self.score:.1f} %; {', '.join(unseen)}"

    def as_json(self) -> dict[str, Any]:
        run = {"run": self.run.id, "method": str(self.method), "draw": self.run.draw, "trial": self.run.trial}
        return run | {"selection": self.rule, "score": self.score, "unseen": self.unseen}


def best_evaluation(curve: Curve) -> BestSoFar | None:
    """None where the run has no evaluation of what its dataset's selection rule needs."""
    run, rule = curve.run, usual_selection(curve.run.dataset)
    by_domain = [RULES[rule](curve, unseen, ACCURACY) for unseen in run.test_domains] if curve.steps else []
    known = [scores for scores in by_domain if scores is not None]
    if not known:
        return None
    scores = np.mean(known, axis=0)
    best = int(scores.argmax())
    unseen = {domain: float(curve.accuracy[domain, "in"][best]) for domain in run.test_domains}
    return BestSoFar(run, curve.method, rule, float(scores[best]), unseen)


def best_so_far(collection: Collection, runs: Sequence[Run]) -> BestSoFar | None:
    """The best evaluation of all these runs."""
    ids = {run.id for run in runs}
    best = [best_evaluation(curve) for curve in collection.curves if curve.run.id in ids]
    return max((one for one in best if one is not None), key=lambda one: one.score, default=None)
