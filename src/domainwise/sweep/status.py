"""Where a sweep stands, seen from its folder alone: from any terminal, on any machine that shares it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from domainwise.claims import holder
from domainwise.data import usual_selection
from domainwise.protocol.selection import RULES, Curve
from domainwise.records import RunFolder, Status
from domainwise.report.words import duration
from domainwise.runs import Run
from domainwise.sweep.collection import collect, method
from domainwise.sweep.events import cost
from domainwise.sweep.published import is_published


@dataclass(frozen=True)
class Standing:
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
        return f"{self.total} runs: {', '.join(parts)}{left}"


def standing(folder: Path, runs: Sequence[Run]) -> Standing:
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
            if status.status == "done" and len(statuses) <= SAMPLED:
                seconds, work = seconds + kept.read()[0][-1].seconds, work + cost(run)
        else:
            left += cost(run)
            running += kept.path.exists() and holder(kept.path) is not None
    return _standing(runs, statuses, running, left * seconds / work / max(1, running) if work and left else None)


def _standing(
    runs: Sequence[Run], statuses: Sequence[Status], running: int = 0, seconds_left: float | None = None
) -> Standing:
    by_state = {state: tuple(s for s in statuses if s.status == state) for state in ("done", "diverged", "failed")}
    return Standing(len(runs), len(by_state["done"]), running, by_state["diverged"], by_state["failed"], seconds_left)


def promise(curve: Curve) -> tuple[float, str] | None:
    """How good a run looks by its dataset's rule, and what it reaches there on the unseen domains, in words."""
    run, rule = curve.run, usual_selection(curve.run.dataset)
    found = [RULES[rule](curve, unseen) for unseen in run.test_domains] if curve.steps else []
    known = [scores for scores in found if scores is not None]
    if not known:
        return None
    mean = np.mean(known, axis=0)
    at = int(mean.argmax())
    unseen = [f"{100 * curve.accuracy[domain, 'in'][at]:.1f} % on {domain}" for domain in run.test_domains]
    words = f"{method(run)}, draw {run.draw}, trial {run.trial}: {100 * mean[at]:.1f} %; {', '.join(unseen)}"
    return float(mean[at]), f"best by {rule} validation so far: {words}"


def best_so_far(folder: Path, runs: Sequence[Run]) -> str | None:
    """The most promising run, in words."""
    wanted = {run.id for run in runs}
    found = [promise(curve) for curve in collect(folder).curves if curve.run.id in wanted]
    best = max((one for one in found if one is not None), key=lambda one: one[0], default=None)
    return best[1] if best else None


SAMPLED = 200
"""How many ended runs are read for the estimate."""
