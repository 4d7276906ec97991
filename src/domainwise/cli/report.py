"""`domainwise report`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import print_json, say
from domainwise.cli.progress import parts_progress

EXAMPLES = (
    "Examples:  [bold]domainwise report runs/sweep[/]   ·   "
    "[bold]domainwise report runs/demo --out demo.html --baseline IRM[/]   ·   [bold]domainwise report results[/]"
)


def report(
    folder: options.ReportFolder,
    out: Annotated[Path | None, typer.Option(help="The page (default: report.html in the folder).")] = None,
    baseline: options.Baseline = "ERM",
    metric: options.MetricName = "accuracy",
    no_models: Annotated[
        bool, typer.Option("--no-models", help="Use records only: no heatmaps, perturbations or audits.")
    ] = False,
    shift: Annotated[
        bool, typer.Option("--shift", help="Also estimate the kind of shift of photographs: minutes on a GPU.")
    ] = False,
    data_root: options.DataRoot = None,
    device: options.Device = "cpu",
    partial: options.Partial = False,
    as_json: options.Json = False,
) -> None:
    """Write one HTML page with all results: tables under every selection rule, curves, figures, what models look at.

    Of a folder of published folders the page has a leaderboard of each: accuracies, differences to the baseline,
    searches, times, and the records to download.

    The page needs no network. Call it again while a sweep runs to bring it up to date. Sections about models need the
    runs' models and their data; where either is missing the page says so.
    """
    from domainwise.cli.table import print_notes
    from domainwise.core.phrasing import counted
    from domainwise.reports.page.write import write_page

    with parts_progress("reading the records") as progress:
        models = None
        if not no_models:
            from domainwise.reports.page.models import ModelOptions

            models = ModelOptions(data_root, device, shift, progress)
        path, collection = write_page(folder, out, baseline=baseline, models=models, partial=partial, metric=metric)
    print_notes([*collection.notes, *collection.completeness().sentences])
    if as_json:
        print_json({"page": str(path), "runs": len(collection.runs), "bytes": path.stat().st_size})
    else:
        say(f"{path}: {counted(len(collection.runs), 'run')}, {path.stat().st_size / 1e6:.2f} MB")
