"""`domainwise report`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli.common import Json, console, print_json

EXAMPLES = (
    "Examples:  [bold]domainwise report runs/sweep[/]   ·   "
    "[bold]domainwise report runs/demo --out demo.html --baseline IRM[/]"
)


def report(
    folder: Annotated[Path, typer.Argument(help="A folder of a sweep, a training or a demo, or of DomainBed.")],
    out: Annotated[Path | None, typer.Option(help="The page [default: report.html in the folder].")] = None,
    baseline: Annotated[str, typer.Option(help="What paired differences are taken to.")] = "ERM",
    as_json: Json = False,
) -> None:
    """Write one HTML page with all results: tables under every selection rule, curves, failures.

    The page needs no network. Call it again while a sweep runs to bring it up to date.
    """
    from domainwise.algorithms import ALGORITHMS
    from domainwise.cli.table import print_notes
    from domainwise.errors import unknown
    from domainwise.report.page import write_page

    if baseline.split(" (")[0] not in ALGORITHMS:
        raise unknown("algorithm", baseline, ALGORITHMS)
    path, collection = write_page(folder, out, baseline=baseline)
    print_notes(collection.notes)
    if as_json:
        print_json({"page": str(path), "runs": len(collection.runs), "bytes": path.stat().st_size})
    else:
        console.print(f"{path}: {len(collection.runs)} runs, {path.stat().st_size / 1e6:.2f} MB", soft_wrap=True)
