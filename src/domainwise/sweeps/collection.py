"""Collecting: the curves of all runs in a folder, grouped into experiments and searches, ready for selection.

A search is what a rule chooses from: the draws of one algorithm for the same domains and trial. An experiment is what
goes into one table: all runs that differ only in algorithm, domains, draw and trial.
"""

import gc
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.core.table import Table, Tabular
from domainwise.data.catalogue import DATASETS
from domainwise.protocol.balance import as_pairs
from domainwise.protocol.dataset_names import title
from domainwise.protocol.network_names import network_title
from domainwise.protocol.records import PenaltyRecord, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run, WeightsReference
from domainwise.protocol.selection import Curve
from domainwise.sweeps.completeness import COUNTED, Completeness
from domainwise.sweeps.plan import missing_runs, read_plan
from domainwise.sweeps.published import is_published, read_published
from domainwise.sweeps.reading import read_runs

log = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class Experiment:
    """The settings that all runs of one table share."""

    dataset: str
    setting: str
    network: str
    steps: int
    precision: str
    weights: str
    augmentation: str
    image_size: int
    seed: int
    unused: tuple[str, ...]
    """Domains that were neither trained nor tested on."""
    threads: int = 1
    recipe: str = ""
    """How they were trained, where that is not the default: see `protocol.recipe`."""


@dataclass(frozen=True, repr=False)
class Collection(Tabular):
    """The contents of a folder: curves of the runs with at least one evaluation, and how each run ended."""

    curves: tuple[Curve, ...]
    statuses: dict[str, Status]
    notes: tuple[str, ...]
    runs: tuple[Run, ...] = ()
    """Every run found, evaluated or not."""
    missing: tuple[Run, ...] = ()
    """The runs of the folder's plans that were not found."""
    searched: str = "draw"
    """What a search chooses from: draws, or candidates if all plans of the folder say so."""
    damaged: Mapping[str, str] = field(default_factory=dict)
    """{name of a run's folder: why it cannot be read}."""
    partial: bool = True
    """Whether the curves are also those of runs that have not come to their end."""
    jobs: bool = field(default=False, compare=False)
    """Whether the runs are jobs of DomainBed, which counts them all, whether they have come to their end or not."""

    def finished(self) -> "Collection":
        """Without the curves of runs that failed or are not finished.

        A run that diverged stays: it has come to its end, and without it methods that diverge would look better.
        """
        if self.jobs:
            return self
        ended = {key for key, status in self.statuses.items() if status.status in COUNTED}
        return replace(self, curves=tuple(curve for curve in self.curves if curve.run.id in ended), partial=False)

    @cached_property
    def incomplete(self) -> tuple[Run, ...]:
        """The runs that are not done, those that are missing last."""
        done = {key for key, status in self.statuses.items() if status.status == "done"}
        return (*(run for run in self.runs if run.id not in done), *self.missing)

    def completeness(self, runs: Iterable[Run] | None = None) -> Completeness:
        """Which of these runs, by default of all, did not come to a good end."""
        considered = self.incomplete if runs is None else tuple(runs)
        return Completeness.of(considered, self.statuses, self.missing, self.partial, named=not self.jobs)

    def experiments(self) -> dict[Experiment, list[Curve]]:
        """The curves of each table; runs that leave out two domains serve as companions only."""
        return dict(self._experiments)

    @cached_property
    def _experiments(self) -> dict[Experiment, list[Curve]]:
        grouped: dict[Experiment, list[Curve]] = {}
        for curve in with_companions(distinct(self.curves)):
            grouped.setdefault(experiment(curve.run), []).append(curve)
        return dict(sorted(grouped.items()))

    def as_table(self) -> Table:
        """A row per experiment."""
        rows = []
        for one, curves in self.experiments().items():
            methods = dict.fromkeys(str(curve.method) for curve in curves)
            facts = [title(one.dataset), one.setting, one.network, ", ".join(methods)]
            rows.append([*facts, str(one.steps), str(len({curve.run.id for curve in curves}))])
        done = sum(status.status == "done" for status in self.statuses.values())
        headings = ("dataset", "setting", "network", "methods", "steps", "runs")
        return Table(headings, rows, f"{counted(len(self.runs), 'run')}, {done} done", notes=self.notes, labels=4)

    def to_records(self) -> list[dict[str, Any]]:
        """One per run, evaluation, domain and split."""
        return [
            {
                "run": curve.run.id,
                "dataset": curve.run.dataset,
                "method": str(curve.method),
                "unseen": "+".join(curve.run.test_domains),
                "draw": curve.run.draw,
                "trial": curve.run.trial,
                "step": step,
                "domain": domain,
                "split": split,
                "accuracy": float(values[i]),
            }
            for curve in self.curves
            for i, step in enumerate(curve.steps)
            for (domain, split), values in curve.accuracy.items()
        ]


def experiment(run: Run) -> Experiment:
    known = DATASETS[run.dataset].domains if run.dataset in DATASETS and run.setting == "multi" else ()
    used = set(run.domains)
    unused = tuple(domain for domain in known if domain not in used)
    weights = WeightsReference.parse(run.weights).fingerprint
    facts = (network_title(run.network), run.steps, run.precision, weights, run.augmentation, run.image_size, run.seed)
    shown = run.recipe | ({"class_weights": " ".join(as_pairs(run.class_weights))} if run.class_weights else {})
    recipe = ", ".join(f"{name} {value}" for name, value in shown.items())
    return Experiment(run.dataset, run.setting, *facts, unused, run.threads, recipe)


def is_companion(run: Run) -> bool:
    """Whether a run leaves out two domains only to help select others."""
    roles = run.dataset in DATASETS and DATASETS[run.dataset].unseen
    return run.setting == "multi" and len(run.test_domains) == 2 and not roles and not run.validation_domains


def distinct(curves: Iterable[Curve]) -> list[Curve]:
    """Each training once: of runs that differ in their average only, the last weights are the same.

    Of such curves the longest stays, since the others may not be finished; of equal ones that of a run without average.
    """
    curves = list(curves)
    if not any(curve.run.average for curve in curves):
        return curves
    longest: dict[tuple[str, str], Curve] = {}
    for curve in curves:
        key = (curve.run.training_id, curve.average)
        known = longest.setdefault(key, curve)
        if (len(known.steps), not known.run.average) < (len(curve.steps), not curve.run.average):
            longest[key] = curve
    return list(longest.values())


def with_companions(curves: Iterable[Curve]) -> list[Curve]:
    """Attaches to every curve those of the runs that leave out one domain more."""
    curves = list(curves)
    pairs: dict[tuple[object, ...], list[Curve]] = {}
    for curve in curves:
        if is_companion(curve.run):
            for domain in curve.run.test_domains:
                pairs.setdefault((*_drawn(curve), domain), []).append(curve)
    if not pairs:
        return curves
    result = []
    for curve in curves:
        if is_companion(curve.run):
            continue
        if curve.run.setting == "single" or len(curve.run.test_domains) != 1:
            result.append(curve)
        else:
            unseen = curve.run.test_domains[0]
            companions = {}
            others = pairs.get((*_drawn(curve), unseen), [])
            for other in sorted(others, key=lambda other: other.run.hparams == curve.run.hparams):  # equal ones win
                further = next(domain for domain in other.run.test_domains if domain != unseen)
                companions[further] = other
            result.append(replace(curve, companions=companions) if companions else curve)
    return result


def _drawn(curve: Curve) -> tuple[object, ...]:
    """The key that the runs of one draw share, whichever domains they leave out."""
    return (experiment(curve.run), curve.method, curve.run.trial, curve.run.draw)


def runs_parent(folder: Path) -> Path:
    """The folder that holds the runs: the folder itself, or the parent of a run's own."""
    return files.resolved(folder).parent if (folder / "run.json").is_file() else folder


def collect(folder: Path) -> Collection:
    """Reads every run below a folder, or the one whose own folder it is, or those published in it.

    Anything else in the folder is noted and skipped, and so is what cannot be read.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder of a sweep")
    if is_published(folder):
        published = read_published(folder)
        curves = tuple(curve for one in published for curve in one.curves)
        statuses = {one.run.id: one.status for one in published}
        return _with_plans(folder, Collection(curves, statuses, (), tuple(one.run for one in published)))
    with _no_garbage_collection():
        return _collect(folder)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of short-lived rows form no cycles; looking for some would take a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() == 0:  # together: what was read counts as old without being searched once
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _collect(folder: Path) -> Collection:
    curves: list[Curve] = []
    statuses: dict[str, Status] = {}
    notes: list[str] = []
    runs: list[Run] = []
    damaged: dict[str, str] = {}
    for path, found in read_runs(folder):
        if isinstance(found, UserError):
            notes.append(f"{path}: skipped ({found})")
            damaged[path.rpartition(os.sep)[2]] = str(found)
            continue
        runs.append(found.run)
        if found.status is not None:
            statuses[found.run.id] = found.status
        curves += found.curves
    return _with_plans(folder, Collection(tuple(curves), statuses, tuple(notes), tuple(runs), damaged=damaged))


def _with_plans(folder: Path, collection: Collection) -> Collection:
    """With what the folder's plans say of it: which runs are missing, and the word for a set of values in a search."""
    there = {run.id for run in collection.runs}
    searches: set[str] = set()
    missing: dict[str, Run] = {}
    for path in sorted((folder / "plans").glob("*.json")):
        try:
            plan = read_plan(path)
        except UserError:  # status and publish report a damaged plan
            searches.add("draws")
            continue
        searches.add(plan.search)
        missing |= {run.id: run for run in missing_runs(plan, path.parent, there)}
    searched = "candidate" if searches == {"candidates"} else "draw"
    return replace(collection, searched=searched, missing=tuple(missing.values()))


def read_penalties(folder: Path, runs: Iterable[Run]) -> dict[str, list[PenaltyRecord]]:
    """{run's id: its penalties} of the runs that tracked some; damaged ones are named and left out."""
    if is_published(folder):
        published = {one.run.id: list(one.penalties) for one in read_published(folder)}
        penalties = {run.id: published.get(run.id, []) for run in runs}
    else:
        penalties = {run.id: _penalties(RunFolder(folder, run)) for run in runs}
    return {key: rows for key, rows in penalties.items() if rows}


def _penalties(folder: RunFolder) -> list[PenaltyRecord]:
    try:
        return folder.read_penalties()
    except UserError as damage:
        log.warning("left out: %s", damage)
        return []
