"""The page of a folder of published folders: a leaderboard of each, with its records to download."""

import base64
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from domainwise.core import files
from domainwise.protocol.dataset_names import titles
from domainwise.protocol.records import Status
from domainwise.protocol.runs import Run
from domainwise.reports.page.results import Cell, DifferenceVerdict, facts_of, method_lines, sources
from domainwise.reports.paper_comparison import printed_beside
from domainwise.sweeps.accuracy_table import AccuracyTable
from domainwise.sweeps.collection import Collection
from domainwise.sweeps.commands import sweep_command
from domainwise.sweeps.leaderboard import Leaderboard, LeaderboardEntry, Provenance, leaderboards
from domainwise.sweeps.plan import saved_plans
from domainwise.sweeps.published import FILE, is_published

NAMED = 6
"""So many methods are named in a cell of the overview."""


@dataclass(frozen=True)
class RankedLine:
    """A method's row: its average and its difference to the baseline, drawn, and what its runs took."""

    entry: LeaderboardEntry
    cell: Cell
    verdict: DifferenceVerdict | None


@dataclass(frozen=True)
class RankedView:
    """A leaderboard under one selection rule, best first."""

    table: AccuracyTable
    lines: tuple[RankedLine, ...]
    paper: str
    """The tables of the paper beside ours."""

    def judged(self, words: str) -> dict[str, float]:
        """{method: difference to the baseline} of those with this verdict, best first."""
        known = ((line.entry.name, line.verdict) for line in self.lines if line.verdict is not None)
        return {name: verdict.difference.mean for name, verdict in known if verdict.words == words}


@dataclass(frozen=True)
class Board:
    """One leaderboard of a folder, with the settings that distinguish it from others."""

    title: str
    facts: str
    views: Mapping[str, RankedView]


@dataclass(frozen=True)
class PublishedFolder:
    """A section of the page."""

    name: str
    anchor: str
    boards: tuple[Board, ...]
    provenance: Provenance
    commands: tuple[str, ...]
    """Those that make its runs, where options can say it."""
    records: Markup
    """Its file, as an address that holds the contents."""
    size: str

    @property
    def title(self) -> str:
        return ", ".join(dict.fromkeys(board.title for board in self.boards))

    def ahead(self, rule: str) -> str:
        """Who is clearly ahead of the baseline, in words: by how many points, or in how many of several tables."""
        found = [board.views[rule].judged("clearly ahead") for board in self.boards if rule in board.views]
        if len(found) == 1:
            named = [f"{name} {difference:+.1f}" for name, difference in found[0].items()]
        else:
            times = Counter(name for one in found for name in one).most_common()
            named = [f"{name} in {count} of {len(found)} tables" for name, count in times]
        more = [f"{len(named) - NAMED} more"] if len(named) > NAMED else []
        return ", ".join([*named[:NAMED], *more]) or "none"

    def number(self, rule: str, words: str) -> int:
        """How many rows have this verdict."""
        return sum(len(board.views[rule].judged(words)) for board in self.boards if rule in board.views)

    def has(self, rule: str) -> bool:
        """Whether any of its tables has the evaluations that a rule needs."""
        return any(rule in board.views for board in self.boards)


def published_folders(folder: Path) -> list[Path]:
    """The published folders that a folder holds, by name."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and is_published(path))


def sections(collections: Mapping[Path, Collection], baseline: str = "ERM") -> list[PublishedFolder]:
    """One per published folder."""
    found = enumerate(collections.items(), 1)
    return [_section(folder, f"experiment-{i}", collection, baseline) for i, (folder, collection) in found]


def together(collections: Iterable[Collection]) -> Collection:
    """All their runs, without curves: these belong to tables of their own."""
    statuses: dict[str, Status] = {}
    runs: list[Run] = []
    for one in collections:
        statuses |= one.statuses
        runs += one.runs
    return Collection((), statuses, (), tuple(runs))


def _section(folder: Path, anchor: str, collection: Collection, baseline: str) -> PublishedFolder:
    found = leaderboards(collection, baseline)
    names = titles(board.group.experiment.dataset for board in found)
    boards = (_board(names[board.group.experiment.dataset], board, collection) for board in found)
    plans = saved_plans(folder, damaged=[])  # what they planned is in the records
    commands = (sweep_command(plan, Path("runs") / folder.name) for plan in plans)
    data = files.read(folder / FILE)
    address = Markup("data:application/gzip;base64," + base64.b64encode(data).decode())
    known, size = tuple(command for command in commands if command), f"{len(data) / 1e3:,.0f} kB"
    return PublishedFolder(folder.name, anchor, tuple(boards), Provenance.of(collection), known, address, size)


def _board(name: str, board: Leaderboard, collection: Collection) -> Board:
    views = {rule: _view(board, rule) for rule in board.tables}
    first = next(iter(board.tables.values()))
    return Board(name, facts_of(board.group, first, collection.completeness(board.group.incomplete)), views)


def _view(board: Leaderboard, rule: str) -> RankedView:
    table = board.tables[rule]
    beside = printed_beside(table)
    lines = {line.row.method: line for line in method_lines(table, beside)}
    ranked = board.ranked(rule)
    others = [entry for entry in board.entries if entry not in ranked and entry.method in lines]
    shown = ((entry, lines[entry.method]) for entry in (*ranked, *others))
    return RankedView(
        table, tuple(RankedLine(entry, line.cells[0], line.verdict) for entry, line in shown), sources(beside)
    )
