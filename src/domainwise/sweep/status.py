"""Where a sweep stands, seen from its folder alone: from any terminal, on any machine that shares it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domainwise.core.locks import lock_holder
from domainwise.core.phrasing import counted, duration
from domainwise.data.catalogue import usual_selection
from domainwise.protocol.records import RunFolder, Status
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import RULES, Curve, Method
from domainwise.sweep.collection import collect
from domainwise.sweep.events import cost
from domainwise.sweep.published import is_published


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


def begun_runs(folder: Path) -> list[Run]:
    """Those that a folder without a plan holds, or the one whose own folder it is."""
    return list(collect(folder).runs)


def standing(folder: Path, runs: Sequence[Run]) -> SweepProgress:
    """Reads one line of each run's records; the time left follows from what ended runs took per unit of work."""
    if is_published(folder):
        known = collect(folder).statuses
        return _standing(runs, [known[run.id] for run in runs if run.id in known])
    statuses: list[Status] = []
    running, seconds, work, left = 0, 0.0, 0.0, 0.0
    for run in runs:
        kept = RunFolder(folder, run)
        status = kept.status()
        if status is not None:
            statuses.append(status)
            if status.status == "done" and len(statuses) <= SAMPLED and (records := kept.read()[0]):
                seconds, work = seconds + records[-1].seconds, work + cost(run)
        else:
            left += cost(run)
            running += kept.path.exists() and lock_holder(kept.path) is not None
    return _standing(runs, statuses, running, left * seconds / work / max(1, running) if work and left else None)


def _standing(
    runs: Sequence[Run], statuses: Sequence[Status], running: int = 0, seconds_left: float | None = None
) -> SweepProgress:
    by_state = {state: tuple(s for s in statuses if s.status == state) for state in ("done", "diverged", "failed")}
    return SweepProgress(
        len(runs), len(by_state["done"]), running, by_state["diverged"], by_state["failed"], seconds_left
    )


@dataclass(frozen=True)
class BestSoFar:
    """How good a run looks by its dataset's rule, and what it reaches there on the unseen domains."""

    run: Run
    rule: str
    score: float
    unseen: dict[str, float]

    def __str__(self) -> str:
        who = f"{Method.of(self.run)}, draw {self.run.draw}, trial {self.run.trial}"
        reached = [f"{100 * accuracy:.1f} % on {domain}" for domain, accuracy in self.unseen.items()]
        return f"best by {self.rule} validation so far: {who}: {100 * self.score:.1f} %; {', '.join(reached)}"

    def as_json(self) -> dict[str, Any]:
        run = {"run": self.run.id, "method": str(Method.of(self.run)), "draw": self.run.draw, "trial": self.run.trial}
        return run | {"selection": self.rule, "score": self.score, "unseen": self.unseen}


def promise(curve: Curve) -> BestSoFar | None:
    """None where a run has not been judged by what its dataset's rule needs."""
    run, rule = curve.run, usual_selection(curve.run.dataset)
    found = [RULES[rule](curve, unseen) for unseen in run.test_domains] if curve.steps else []
    known = [scores for scores in found if scores is not None]
    if not known:
        return None
    mean = np.mean(known, axis=0)
    at = int(mean.argmax())
    unseen = {domain: float(curve.accuracy[domain, "in"][at]) for domain in run.test_domains}
    return BestSoFar(run, rule, float(mean[at]), unseen)


def best_so_far(folder: Path, runs: Sequence[Run]) -> BestSoFar | None:
    """The most promising run."""
    wanted = {run.id for run in runs}
    found = [promise(curve) for curve in collect(folder).curves if curve.run.id in wanted]
    return max((one for one in found if one is not None), key=lambda one: one.score, default=None)


SAMPLED = 200
"""How many ended runs are read for the estimate."""
