"""Accuracy tables: per unseen domain and average, mean ± standard error, with the paired difference to a baseline."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from domainwise.report.statistics import Difference, Estimate, Scores, average, estimate, paired


@dataclass(frozen=True)
class Row:
    """One algorithm's line."""

    algorithm: str
    domains: dict[str, Estimate]
    average: Estimate | None
    difference: Difference | None


@dataclass(frozen=True)
class AccuracyTable:
    """Accuracies in per cent on unseen domains; `selection` says how the reported points were chosen."""

    dataset: str
    selection: str
    baseline: str
    rows: tuple[Row, ...]

    @classmethod
    def of(
        cls, dataset: str, selection: str, scores: Scores, order: Sequence[str], baseline: str = "ERM"
    ) -> "AccuracyTable":
        rows = []
        domains = sorted({domain for by_domain in scores.values() for domain in by_domain})
        for algorithm in (name for name in order if name in scores):
            by_domain = scores[algorithm]
            gap = paired(by_domain, scores[baseline]) if baseline in scores and algorithm != baseline else None
            cells = {domain: estimate(list(trials.values())) for domain, trials in sorted(by_domain.items())}
            rows.append(Row(algorithm, cells, average(by_domain, domains), gap))
        return cls(dataset, selection, baseline, tuple(rows))

    @property
    def columns(self) -> list[str]:
        return sorted({domain for row in self.rows for domain in row.domains})

    def render(self) -> Table:
        """For the terminal, the best of every column in bold."""
        table = Table(
            title=f"{self.dataset}: accuracy on the unseen domain, per cent",
            caption=f"mean ± standard error; selected by {self.selection} validation",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        table.add_column("algorithm", no_wrap=True)
        for name in (*self.columns, "average", f"minus {self.baseline}"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.rows:
            cells = [self._cell(row.domains.get(d), [r.domains.get(d) for r in self.rows]) for d in self.columns]
            mean = self._cell(row.average, [r.average for r in self.rows])
            table.add_row(row.algorithm, *cells, mean, str(row.difference) if row.difference else "")
        return table

    @staticmethod
    def _cell(own: Estimate | None, column: Sequence[Estimate | None]) -> str:
        if own is None:
            return "not run"
        best = max(e.mean for e in column if e is not None)
        return f"[bold]{own}[/bold]" if own.mean == best else str(own)

    def sentence(self, algorithm: str) -> str:
        """What the row means, in words."""
        row = next((row for row in self.rows if row.algorithm == algorithm), None)
        if row is None or row.difference is None:
            return f"{algorithm} and {self.baseline} were not both run: nothing to compare."
        gap = row.difference
        return (
            f"On domains they never saw, {algorithm} is {gap.verdict} {self.baseline}: {gap} points "
            f"over {gap.n} pairs of runs, ahead in {gap.ahead} of them."
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
