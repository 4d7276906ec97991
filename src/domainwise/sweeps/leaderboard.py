"""Leaderboards: every method of an experiment, what it reaches by each selection rule, and what its runs took."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from domainwise.core.phrasing import counted
from domainwise.protocol.selection import RULES, Method
from domainwise.protocol.statistics import selected
from domainwise.sweeps.accuracy_table import AccuracyTable, Row
from domainwise.sweeps.collection import Collection
from domainwise.sweeps.tables import Group, groups, table_of

PAPER = "paper"
"""The variant of a row searched in the paper's ranges; leaderboards leave it out of names."""


def plain(method: Method) -> Method:
    """A method without this variant."""
    return Method(method.algorithm) if method.variant == PAPER else method


@dataclass(frozen=True)
class LeaderboardEntry:
    """A method: its row under each selection rule, and what its runs took."""

    method: Method
    rows: Mapping[str, Row]
    runs: int
    seconds: float | None
    """The median over its runs, from the start to the last evaluation; None where no run says it. Runs may have shared
    their device, so that one alone takes at most this."""
    devices: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(plain(self.method))

    @property
    def effort(self) -> str:
        """How much was searched and trained."""
        row = next(iter(self.rows.values()))
        return f"{row.draws} x {row.trials} x {row.steps}"

    @property
    def time(self) -> str:
        """The median of the seconds, in words."""
        if self.seconds is None:
            return ""
        return f"{self.seconds:.1f} s" if self.seconds < 10 else f"{self.seconds:,.0f} s"


@dataclass(frozen=True)
class Leaderboard:
    """The methods of one table under every rule whose evaluations it has."""

    group: Group
    tables: Mapping[str, AccuracyTable]
    entries: tuple[LeaderboardEntry, ...]

    def ranked(self, rule: str) -> list[LeaderboardEntry]:
        """Those with an average by this rule, best first."""
        rows = self.tables[rule].rows
        means = {row.method: row.average.mean for row in rows if row.average is not None}
        known = [entry for entry in self.entries if entry.method in means]
        return sorted(known, key=lambda entry: means[entry.method], reverse=True)


def leaderboards(collection: Collection, baseline: str = "ERM") -> list[Leaderboard]:
    """One per table of a folder."""
    found = []
    for group in groups(collection):
        by_rule = {rule: table_of(group, selected(group.curves, rule), rule, baseline) for rule in RULES}
        tables = {rule: table for rule, table in by_rule.items() if not table.is_empty}
        methods = dict.fromkeys(row.method for table in tables.values() for row in table.rows)
        if tables:
            found.append(Leaderboard(group, tables, tuple(_entry(m, tables, group, collection) for m in methods)))
    return found


def _entry(
    method: Method, tables: Mapping[str, AccuracyTable], group: Group, collection: Collection
) -> LeaderboardEntry:
    rows = {rule: row for rule, table in tables.items() for row in table.rows if row.method == method}
    curves = [curve for curve in group.curves if curve.method == method]
    seconds = [curve.seconds for curve in curves if curve.seconds]
    statuses = [collection.statuses[curve.run.id] for curve in curves if curve.run.id in collection.statuses]
    devices = sorted({status.device for status in statuses} - {""})
    return LeaderboardEntry(method, rows, len(curves), median(seconds) if seconds else None, tuple(devices))


@dataclass(frozen=True)
class Provenance:
    """Devices, versions and dates of runs in one line."""

    runs: int
    devices: tuple[str, ...]
    commits: tuple[str, ...]
    versions: tuple[str, ...]
    dates: tuple[str, ...]

    @classmethod
    def of(cls, collection: Collection) -> "Provenance":
        statuses = [collection.statuses[run.id] for run in collection.runs if run.id in collection.statuses]
        software = [status.software.split(", ") for status in statuses]
        columns = (
            [status.device for status in statuses],
            [parts[0] for parts in software],
            [parts[1] for parts in software if len(parts) > 1],
            [status.date for status in statuses],
        )
        return cls(len(collection.runs), *(tuple(sorted({*column} - {""})) for column in columns))

    def __str__(self) -> str:
        several = f"{len(self.commits)} commits, named in the records"
        commits = several if len(self.commits) > 1 else ", ".join(self.commits)
        dates = " to ".join(dict.fromkeys((*self.dates[:1], *self.dates[-1:])))
        runs = counted(self.runs, "run")
        made = f"{runs} on {' and '.join(self.devices)}" if self.devices else runs
        return "; ".join(part for part in (made, commits, ", ".join(self.versions), dates) if part)
