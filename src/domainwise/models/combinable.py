"""The runs that a soup or an ensemble is made of: found in a sweep's folder, grouped, and checked."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.engine.restore import finished
from domainwise.protocol.dataset_names import title
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Combination, Run, WeightsReference
from domainwise.protocol.selection import Curve, Method
from domainwise.sweeps.collection import Collection, collect, experiment, is_companion
from domainwise.sweeps.plan import planned_runs, saved_plans
from domainwise.sweeps.published import is_published
from domainwise.sweeps.reading import read_curves

log = logging.getLogger(__name__)

NAMES = 3
"""How many runs a message names."""

SHARED: dict[str, Callable[[Run], Any]] = {
    "dataset": lambda run: run.dataset,
    "algorithm": lambda run: run.algorithm,
    "test domains": lambda run: ", ".join(run.test_domains) or "none",
    "training domains": lambda run: ", ".join(run.train_domains),
    "trial": lambda run: run.trial,
    "held out": lambda run: run.held_out,
    "image size": lambda run: run.image_size,
    "network": lambda run: run.network,
    "average": lambda run: run.average or "none",
}
"""What the members of any combination share: they answer the same question about the same samples."""
START: dict[str, Callable[[Run], Any]] = {
    "pre-trained weights": lambda run: WeightsReference.parse(run.weights).fingerprint or "none",
    "start": lambda run: run.start or "random classifier",
    "seed": lambda run: run.seed,
    "draw, by which initial weights are drawn": lambda run: 0 if run.shared_start or _is_fixed(run) else run.draw,
}
"""What decides the initial weights besides (see engine/session.py)."""


def _is_fixed(run: Run) -> bool:
    """Whether the start has nothing random: pre-trained features, and the classifier that fits them best."""
    return bool(run.weights) and run.start == "probe"


@dataclass(frozen=True)
class RunsWanted:
    """Which runs of a sweep to combine; None stands for all."""

    algorithm: str | None = None
    """The algorithm, or the whole name of the method where one algorithm is searched in several spaces."""
    test_domain: str | None = None
    trial: int | None = None

    def fits(self, run: Run) -> bool:
        return (
            self.algorithm in (None, run.algorithm, str(Method.of(run)))
            and (self.test_domain is None or self.test_domain in run.test_domains)
            and self.trial in (None, run.trial)
        )


@dataclass(frozen=True)
class CombinableRuns:
    """The runs of one method, one division of the domains and one trial, in the order of their draws."""

    folders: tuple[RunFolder, ...]
    """Those that are done."""
    curves: tuple[Curve, ...]
    """Their evaluations."""
    offered: tuple[str, ...]
    """The identities of all, those that diverged included."""

    @property
    def run(self) -> Run:
        """The first."""
        return self.folders[0].run

    @property
    def name(self) -> str:
        unseen = "+".join(self.run.test_domains) or "none"
        return f"{Method.of(self.run)} on {title(self.run.dataset)}, unseen {unseen}, trial {self.run.trial}"

    def start_difference(self) -> str:
        """Why the runs do not share their start, in one line; empty if they do."""
        return next((text for one in self.folders[1:] if (text := difference(self.run, one.run, SHARED | START))), "")


def difference(a: Run, b: Run, facts: dict[str, Callable[[Run], Any]]) -> str:
    """The first fact in which two runs differ, in one line; empty if there is none."""
    for name, fact in facts.items():
        if fact(a) != fact(b):
            return f"runs {a.id} and {b.id} differ in their {name} ({fact(a)} and {fact(b)})"
    return ""


def chosen_runs(folders: Sequence[Path]) -> CombinableRuns:
    """Runs that a user named one by one; all must be done and belong together."""
    chosen = [finished(path) for path in folders]
    for one in chosen:
        if text := difference(chosen[0].run, one.run, SHARED):
            raise UserError(f"these do not belong together: {text}")
    return _combinable(chosen, [one.run for one in chosen])


def runs_of_sweep(folder: Path, wanted: RunsWanted, recorded: Combination = "") -> list[CombinableRuns]:
    """Every group of runs in a sweep's folder that can be combined: one per method, division of the domains and trial.

    All runs that are wanted must have ended; those that diverged are left out. Groups whose combination is `recorded`
    there, but not the weights it was made of (published records have none), stay as they are and are left out.
    """
    if folder.is_dir() and is_published(folder):
        raise UserError(f"{folder} holds published records, which have no weights: give the sweep's own folder")
    collection = collect(folder)
    for note in collection.notes:
        log.warning("%s", note)
    trained = [run for run in collection.runs if not run.combination and not is_companion(run)]
    if not trained:
        raise UserError(f"{folder}: no runs there: give the folder of a sweep")
    runs = [run for run in trained if wanted.fits(run)]
    if not runs:
        raise UserError(f"{folder}: no run there is {_described(wanted)}; there are {_known(trained)}")
    _check_ended(folder, collection, [run for run in _all_runs(folder, runs) if wanted.fits(run)])
    known = {run.members for run in collection.runs if recorded and run.combination == recorded}
    groups: dict[object, list[Run]] = {}
    for run in runs:
        key = (experiment(run), Method.of(run), run.train_domains, run.test_domains, run.trial, run.average)
        groups.setdefault(key, []).append(run)
    combinable = []
    for members in groups.values():
        members.sort(key=lambda run: (run.draw, run.id))
        done = [run for run in members if collection.statuses[run.id].status == "done"]
        if not done:
            raise UserError(f"{folder}: all runs of {members[0]} diverged: nothing to combine")
        here = (RunFolder(folder, run).model_file.is_file() for run in done)
        if tuple(run.id for run in members) in known and not any(here):
            continue
        combinable.append(_combinable([finished(folder / run.id) for run in done], members))
    return sorted(combinable, key=lambda one: (str(Method.of(one.run)), one.run.test_domains, one.run.trial))


def _combinable(done: Sequence[RunFolder], offered: Sequence[Run]) -> CombinableRuns:
    curves = tuple(evaluations(folder) for folder in done)
    return CombinableRuns(tuple(done), curves, tuple(run.id for run in offered))


def evaluations(folder: RunFolder) -> Curve:
    """Those of the weights that a run is used with: the averaged ones, if it has an average."""
    curves = read_curves(folder)
    return next((curve for curve in curves if curve.average == folder.run.average), Curve(folder.run, (), {}))


def _all_runs(folder: Path, runs: Sequence[Run]) -> Iterator[Run]:
    """Those that have begun, and those of the folder's plans."""
    planned = {run.id: run for run in planned_runs(list(saved_plans(folder))) if not is_companion(run)}
    yield from ({run.id: run for run in runs} | planned).values()


def _check_ended(folder: Path, collection: Collection, runs: Iterable[Run]) -> None:
    states = {run.id: collection.statuses.get(run.id) for run in runs}
    for state in ("not finished", "failed"):
        ids = [key for key, status in states.items() if (status.status if status else "not finished") == state]
        if ids:
            names = ", ".join(ids[:NAMES]) + (", ..." if len(ids) > NAMES else "")
            how = "continue the sweep first" if state == "not finished" else "sweep again with retry"
            raise UserError(f"{folder}: {counted(len(ids), 'run')} {state} ({names}): {how}")


def _described(wanted: RunsWanted) -> str:
    facts = {"of": wanted.algorithm, "with unseen domain": wanted.test_domain, "of trial": wanted.trial}
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def _known(runs: Iterable[Run]) -> str:
    runs = list(runs)
    methods = dict.fromkeys(str(Method.of(run)) for run in runs)
    domains = dict.fromkeys("+".join(run.test_domains) or "none" for run in runs)
    trials = sorted({run.trial for run in runs})
    return f"{', '.join(methods)}; unseen {', '.join(domains)}; trials {', '.join(map(str, trials))}"
