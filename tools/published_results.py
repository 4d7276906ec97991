"""What is published in one folder, asked for by rule, method, unseen domain or run."""

from dataclasses import replace
from functools import cached_property
from pathlib import Path

from domainwise.algorithms import ALGORITHMS
from domainwise.analysis.audit import CONSTANT
from domainwise.analysis.choose import Wanted
from domainwise.analysis.selected import selected_runs
from domainwise.analysis.shortcuts import ColourUse
from domainwise.core.errors import UserError
from domainwise.data.find import find_dataset
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Choice, Curve, method
from domainwise.sweep.collection import Collection, collect
from domainwise.sweep.published import is_published, read_published
from domainwise.sweep.tables import AccuracyTable, Row, tables

PAPERS = " (paper)"
"""What a row searched in the paper's ranges is called; pages say so in words."""


class Results:
    """What is published in one folder, read once and tabulated once per question."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables: dict[tuple[str, ...], AccuracyTable] = {}

    @cached_property
    def collection(self) -> Collection:
        return collect(self.folder)

    @property
    def there(self) -> bool:
        return self.folder.is_dir() and is_published(self.folder)

    def of_rule(self, rule: str, until: str = "", against: str = "ERM", draws: str = "") -> AccuracyTable:
        asked = (rule, until, against, draws)
        if asked not in self.tables:
            self.tables[asked] = self._tabulated(*asked)
        return self.tables[asked]

    def _tabulated(self, rule: str, until: str, against: str, draws: str) -> AccuracyTable:
        curves = self.collection.curves
        if draws:
            curves = tuple(curve for curve in curves if curve.run.draw < int(draws))
        if until:
            curves = tuple(curve.until(int(until)) for curve in curves)
        found = tables(replace(self.collection, curves=curves), rule, against)
        if len(found) != 1:
            raise UserError(f"{self.folder}: {len(found)} tables by {rule} validation where one is expected")
        return found[0]

    def row(self, name: str, rule: str, **conditions: str) -> Row | None:
        return next((r for r in self.of_rule(rule, **conditions).rows if r.method in (name, f"{name}{PAPERS}")), None)

    def curves(self, name: str, unseen: str) -> list[Curve]:
        """Every run of a method with this domain unseen."""
        own = (name, f"{name}{PAPERS}")
        return [c for c in self.collection.curves if method(c.run) in own and c.run.test_domains == (unseen,)]

    @cached_property
    def runs(self) -> list[Run]:
        """As tables order them: algorithms as registered, domains as the dataset has them, trials as numbered."""
        algorithms = list(ALGORITHMS)

        def place(run: Run) -> tuple[int, int, int]:
            domains = find_dataset(run.dataset).domains
            return algorithms.index(run.algorithm), domains.index(run.test_domains[0]), run.trial

        return sorted(self.collection.runs, key=place)

    @cached_property
    def chosen(self) -> dict[Run, dict[str, Choice]]:
        return selected_runs(self.collection, Wanted())

    @cached_property
    def colour_uses(self) -> dict[Run, tuple[ColourUse, bool]]:
        """Of every run audited on ColoredMNIST: what it uses, and whether it answers alike whatever it sees."""
        audited = {one.run: one.audit for one in read_published(self.folder) if one.audit is not None}
        return {
            run: (ColourUse(**audit["shortcut"]), audit["commonest"]["share"] > CONSTANT)
            for run, audit in audited.items()
        }
