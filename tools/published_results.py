"""Published results of one folder, by rule, method, unseen domain or run."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from domainwise.algorithms import ALGORITHMS
from domainwise.analysis.audit import CONSTANT, selected_runs
from domainwise.analysis.run_choice import RunFilter
from domainwise.analysis.shortcuts import ColourUse
from domainwise.core.errors import UserError
from domainwise.data.find import find_dataset
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve, Method, Selection
from domainwise.sweeps.accuracy_table import AccuracyTable, Row
from domainwise.sweeps.collection import Collection, collect
from domainwise.sweeps.leaderboard import Leaderboard, leaderboards, plain
from domainwise.sweeps.published import is_published, read_published
from domainwise.sweeps.tables import tables

T = TypeVar("T")


class Results:
    """The published results of one folder, read once and tabulated once per question."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables: dict[tuple[str, ...], AccuracyTable] = {}

    @cached_property
    def collection(self) -> Collection:
        return collect(self.folder)

    @property
    def there(self) -> bool:
        return self.folder.is_dir() and is_published(self.folder)

    @cached_property
    def leaderboard(self) -> Leaderboard:
        return self._only(leaderboards(self.collection), "leaderboards")

    def of_rule(self, rule: str, until: str = "", against: str = "ERM", draws: str = "") -> AccuracyTable:
        key = (rule, until, against, draws)
        if key not in self.tables:
            self.tables[key] = self._tabulated(*key)
        return self.tables[key]

    def _tabulated(self, rule: str, until: str, against: str, draws: str) -> AccuracyTable:
        curves = self.collection.curves
        if draws:
            curves = tuple(curve for curve in curves if curve.run.draw < int(draws))
        if until:
            curves = tuple(curve.until(int(until)) for curve in curves)
        found = tables(replace(self.collection, curves=curves), rule, against)
        return self._only(found, f"tables by {rule} validation")

    def _only(self, found: Sequence[T], what: str) -> T:
        if len(found) != 1:
            raise UserError(f"{self.folder}: {len(found)} {what} where one is expected")
        return found[0]

    def row(self, name: str, rule: str, **conditions: str) -> Row | None:
        return next((r for r in self.of_rule(rule, **conditions).rows if str(plain(r.method)) == name), None)

    def curves(self, name: str, unseen: str) -> list[Curve]:
        """Every run of a method with this domain unseen."""
        curves = [curve for curve in self.collection.curves if curve.run.test_domains == (unseen,)]
        return [curve for curve in curves if str(plain(Method.of(curve.run))) == name]

    @cached_property
    def runs(self) -> list[Run]:
        """As tables order them: algorithms as registered, domains as the dataset has them, trials as numbered."""
        algorithms = list(ALGORITHMS)

        def order(run: Run) -> tuple[int, int, int]:
            domains = find_dataset(run.dataset).domains
            return algorithms.index(run.algorithm), domains.index(run.test_domains[0]), run.trial

        return sorted(self.collection.runs, key=order)

    @cached_property
    def chosen(self) -> dict[Run, dict[str, Selection]]:
        return selected_runs(self.collection, RunFilter())

    @cached_property
    def colour_uses(self) -> dict[Run, tuple[ColourUse, bool]]:
        """Of every run audited on ColoredMNIST: what it uses, and whether its predictions are constant."""
        audited = {one.run: one.audit for one in read_published(self.folder) if one.audit is not None}
        return {
            run: (ColourUse(**audit["shortcut"]), audit["commonest"]["share"] > CONSTANT)
            for run, audit in audited.items()
        }


class Library:
    """The published results of all folders below one, each read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.read: dict[str, Results] = {}

    def __call__(self, name: str) -> Results:
        return self.read.setdefault(name, Results(self.root / name))
