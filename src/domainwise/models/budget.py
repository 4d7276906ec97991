"""A comparison within a budget of time: fewer candidates, steps or trials where all of them would take too long.

What is given up first is what changes the result least: candidates, then steps, then trials, and at last a pre-trained
network for a small one. What the user has set is never changed. The time is measured by a few real steps, which take
another time every time: the choice is stored with the runs, and the same command finds it there.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted, duration
from domainwise.engine.devices import pick_device
from domainwise.nets.weights import planned
from domainwise.protocol import limits
from domainwise.sweeps.estimate import StepTimes
from domainwise.sweeps.events import Settings
from domainwise.sweeps.local import default_workers
from domainwise.sweeps.plan import Plan

STORED = "budget.json"
"""The choices made for a folder of runs, by what was asked for."""
CANDIDATES = TRIALS = 3
"""Of a comparison whose user has not set them."""
CPU_BUDGET = "30m"
QUICK_NETWORK = "small-cnn"
LEVELS = (
    (None, None, Fraction(1)),
    (2, None, Fraction(1, 2)),
    (1, None, Fraction(1, 4)),
    (1, 2, Fraction(1, 4)),
    (1, 1, Fraction(1, 8)),
)
"""The most candidates and trials (None: as many as planned) and the least share of the steps, in the order tried."""


@dataclass(frozen=True)
class Budgeted:
    """A plan that fits a budget as far as it can, and what it leaves out of the one asked for, in words."""

    plan: Plan
    requested: str  # the identity of what was asked for
    reduction: str = ""

    def store(self, out: Path) -> None:
        """Leaves the choice with the runs, where the same command finds it."""
        if self.reduction:
            options = self.plan.options
            choice = [options.network, self.plan.draws, self.plan.trials, options.steps, self.reduction]
            text = json.dumps(_stored(out) | {self.requested: choice}, indent=1)
            files.write(files.writable_folder(out, "runs") / STORED, text)


def parse_budget(text: str, device: str) -> float | None:
    """ "45m" -> 2700.0 seconds; "none" -> None, and so "auto" on a GPU."""
    if text == "auto":
        text = CPU_BUDGET if pick_device(device).type == "cpu" else "none"
    if text == "none":
        return None
    try:
        return limits.seconds_of(text, "budget")
    except UserError as error:
        raise UserError(f"{error}; or none, or auto", argument="budget") from None


def within_budget(
    plan: Plan, settings: Settings, budget: float | None, *, workers: int | None = None, keep: Collection[str] = ()
) -> Budgeted:
    """The plan, or a smaller one that takes about `budget` seconds here; None is no limit.

    `keep` names what the user has set: "candidates", "trials", "steps", "network".
    """
    if budget is None:
        return Budgeted(plan, "")
    requested = _identity(plan, budget, workers, keep)
    if (choice := _stored(settings.out).get(requested)) is not None:
        *numbers, reduction = choice
        return Budgeted(_changed(plan, *numbers), requested, reduction)
    nothing_to_reduce = {"candidates", "trials", "steps"} <= set(keep) and len(list(_networks(plan, keep))) == 1
    if nothing_to_reduce or (settings.out / "plans" / f"{plan.id}.json").exists():  # or its runs have begun
        return Budgeted(plan, requested)
    times = StepTimes(settings.device, settings.data_root)
    at_once = workers or default_workers(settings.device)

    def seconds(one: Plan) -> float:
        return times.estimate(one.runs()) / at_once

    full = seconds(plan)
    if full <= budget:
        return Budgeted(plan, requested)
    smaller = _largest(plan, budget, seconds, keep)
    return Budgeted(smaller, requested, _reduction(plan, smaller, full, seconds(smaller), budget))


def _largest(plan: Plan, budget: float, seconds: Callable[[Plan], float], keep: Collection[str]) -> Plan:
    """The first level of effort that fits, with as many steps as fit; the smallest if none does."""
    smallest = plan
    for start in _networks(plan, keep):
        run = start.runs()[0]
        for candidates, trials, share in LEVELS:
            level = replace(
                start,
                draws=start.draws if candidates is None or "candidates" in keep else min(candidates, start.draws),
                trials=start.trials if trials is None or "trials" in keep else min(trials, start.trials),
            )
            least = run.steps if "steps" in keep else _whole_evaluations(int(run.steps * share), run.evaluate_every)
            fitting = int(run.steps * budget / seconds(level))
            steps = min(run.steps, max(least, _whole_evaluations(fitting, run.evaluate_every)))
            smallest = level if steps == run.steps else _changed(level, None, level.draws, level.trials, steps)
            if seconds(smallest) <= budget:
                return smallest
    return smallest


def _networks(plan: Plan, keep: Collection[str]) -> Iterator[Plan]:
    """The plan with its network, and with a small one in place of a pre-trained one that the user has not named."""
    yield plan
    if "network" not in keep and (plan.options.network or "").startswith("resnet"):
        yield _changed(plan, QUICK_NETWORK, plan.draws, plan.trials, plan.options.steps)


def _whole_evaluations(steps: int, every: int) -> int:
    """So many steps that the last is one with an evaluation, as those of the datasets are."""
    return max(1, (steps - 1) // every) * every + 1


def _changed(plan: Plan, network: str | None, candidates: int, trials: int, steps: int | None) -> Plan:
    """The plan with other numbers, and another network unless that is None or its own."""
    options = replace(plan.options, steps=steps)
    if network is not None and network != options.network:
        options = replace(options, network=network, weights=planned(network, ""))
    return replace(plan, draws=candidates, trials=trials, options=options)


def _reduction(requested: Plan, smaller: Plan, full: float, fitted: float, budget: float) -> str:
    before, after = requested.runs()[0], smaller.runs()[0]
    changes = []
    if before.network != after.network:
        changes.append(f"{after.network} instead of {before.network}")
    if requested.draws != smaller.draws:
        changes.append(f"{counted(smaller.draws, 'candidate')} instead of {requested.draws}")
    if requested.trials != smaller.trials:
        changes.append(f"{counted(smaller.trials, 'trial')} instead of {requested.trials}")
    if before.steps != after.steps:
        changes.append(f"{counted(after.steps, 'step')} instead of {before.steps}")
    aim = f"to fit {_minutes(budget)}" if fitted <= budget else f"to about {duration(fitted)}, the least there is"
    return f"reduced {aim} (all would take about {duration(full)} here): {', '.join(changes)}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.3g} min"


def _identity(plan: Plan, budget: float, workers: int | None, keep: Collection[str]) -> str:
    text = json.dumps([plan.id, budget, workers, sorted(keep)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _stored(out: Path) -> dict[str, list[Any]]:
    """The choices of a folder; none if there is no such file, or if it was damaged."""
    try:
        content = json.loads((out / STORED).read_bytes())
        return {str(requested): list(choice) for requested, choice in content.items() if len(choice) == 5}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
