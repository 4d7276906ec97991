"""A table of accuracies that fills in while runs are trained."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from domainwise.cli.runs_progress import RunsProgress

if TYPE_CHECKING:
    from domainwise.protocol.runs import Run

NOTHING_YET = Text("·", style="dim")


def live_table(progress: RunsProgress) -> Table:
    """A row per method, a column per unseen domain, and the average over them.

    A cell has the mean accuracy of its runs that are done, and how far those are that are being trained.
    """
    from domainwise.protocol.selection import Method

    cells: dict[str, dict[str, list[Run]]] = {}
    for run in progress.passes:
        cells.setdefault(str(Method.of(run)), {}).setdefault("+".join(run.test_domains), []).append(run)
    domains = list(dict.fromkeys(domain for by_domain in cells.values() for domain in by_domain))
    table = Table("algorithm", title="accuracy on the unseen domain, per cent", box=SIMPLE_HEAD)
    for heading in (*domains, "average"):
        table.add_column(heading, justify="right", min_width=10)
    for method, by_domain in cells.items():
        means = [_mean(by_domain.get(domain, ()), progress) for domain in domains]
        known = [mean for mean in means if mean is not None]
        average = Text(f"{sum(known) / len(known):.1f}", style="bold") if len(known) == len(domains) else NOTHING_YET
        shown = [_cell(by_domain.get(domain, ()), mean, progress) for domain, mean in zip(domains, means, strict=True)]
        table.add_row(Text(method), *shown, average)
    return table


def _mean(runs: "Sequence[Run]", progress: RunsProgress) -> float | None:
    """Over the runs that are done, on what each left out; None if there is none."""
    done = [progress.evaluations[run].unseen.values() for run in runs if run in progress.evaluations]
    values = [100 * sum(unseen) / len(unseen) for unseen in done]
    return sum(values) / len(values) if values else None


def _cell(runs: "Sequence[Run]", mean: float | None, progress: RunsProgress) -> Text:
    """ "90.4", "90.4  35 %" while another trial is trained, "35 %" before the first is done, "·" before it begins."""
    if mean is None and runs and all(run in progress.statuses for run in runs):
        return Text("failed", style="red")
    training = [(progress.active[run] + 1) / run.steps for run in runs if run in progress.active]
    parts = [Text(f"{mean:.1f}")] if mean is not None else []
    if training:
        parts.append(Text(f"{100 * sum(training) / len(training):.0f} %", style="cyan"))
    return Text("  ").join(parts) if parts else NOTHING_YET
