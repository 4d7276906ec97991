"""`domainwise theory`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import console, print_json, say

EXAMPLES = "Examples:  [bold]domainwise theory[/]   ·   [bold]domainwise theory --seed 7 --json[/]"


def theory(
    out: Annotated[Path, typer.Option(help="Folder for the plot of the linearisation gaps.")] = Path("runs/theory"),
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Check the paper's Proposition, Remark and linearisations numerically in float64; exit 1 if one fails."""
    from domainwise.analysis.theory import check
    from domainwise.core import files
    from domainwise.core.table import Table
    from domainwise.reports.pictures import linearisation_gaps

    plot = files.writable_folder(out) / "linearisation.png"
    verdicts, gaps = check(seed)
    linearisation_gaps(gaps, plot)
    if as_json:
        values = {"verdicts": [asdict(v) for v in verdicts], "gaps": [asdict(g) for g in gaps], "plot": str(plot)}
        print_json(values)
    else:
        for verdict in verdicts:
            mark = "[green]holds[/]" if verdict.holds else "[bold red]FAILS[/]"
            console.print(f"{mark}  {verdict.statement}", soft_wrap=True, highlight=False)
            console.print(f"       measured {verdict.measured:.3g}, wanted {verdict.target}", style="dim")
            if verdict.note:
                console.print(f"       {verdict.note}", style="dim", soft_wrap=True)
        rows = [[f"{eps:.5f}", *[f"{gap.gaps[i]:.2e}" for gap in gaps]] for i, eps in enumerate(gaps[0].radii)]
        rows.append(["order", *[f"{gap.order:.3f}" for gap in gaps]])
        title = "gap between the true inner maximum and risk + eps * penalty"
        console.print(Table(("eps", *[gap.name for gap in gaps]), rows, title))
        say(f"Plot: {plot}")
    if not all(verdict.holds for verdict in verdicts):
        raise typer.Exit(1)
