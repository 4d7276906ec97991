"""`domainwise doctor`."""

from dataclasses import asdict

import typer
from rich.markup import escape
from rich.table import Table

from domainwise.cli import options
from domainwise.cli.output import console, print_json

EXAMPLES = "Examples:  [bold]domainwise doctor[/]   ·   [bold]domainwise doctor --json --data-root ~/data[/]"
SIGNS = {True: "[green]✓[/]", None: "[dim]–[/]", False: "[red]✗[/]"}


def doctor(data_root: options.DataRoot = None, as_json: options.Json = False) -> None:
    """Say what is here: versions, devices, precisions, optional packages, data, weights, plugins, disk space.

    A dash is something absent that some commands want, a cross something that will not work; then the exit status is 1.
    """
    from domainwise.cli.installation import examine

    findings = list(examine(data_root))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        part = ""
        for finding in findings:
            table.add_row(
                f"[bold]{finding.part}[/]" if finding.part != part else "",
                SIGNS[finding.good],
                escape(finding.name),
                escape(finding.words),
            )
            part = finding.part
        console.print(table)
    if any(finding.good is False for finding in findings):
        raise typer.Exit(1)
