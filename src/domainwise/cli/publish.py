"""`domainwise publish` and `domainwise unpack`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import print_json, say

EXAMPLES = "Examples:  [bold]domainwise publish runs/cmnist results/cmnist[/]"
UNPACK_EXAMPLES = "Examples:  [bold]domainwise unpack results/cmnist runs/cmnist[/]"


def publish(
    folder: options.SweepFolder,
    target: Annotated[Path, typer.Argument(help="Folder for the records; earlier records there are replaced.")],
    as_json: options.Json = False,
) -> None:
    """Write a sweep's records compactly, to keep them with a paper or a repository: one file for all runs.

    [bold]table[/], [bold]report[/], [bold]figure[/] and [bold]status[/] read it like a sweep's folder, and every
    selection rule selects the same. Only draws that have ended in all trials and domains are included, so that all
    methods have equal searches. Models are not included.
    """
    from domainwise.cli.table import print_notes
    from domainwise.core.phrasing import counted
    from domainwise.reports.publish import publish as write

    done = write(folder, target)
    print_notes(done.notes)
    size = done.file.stat().st_size
    if as_json:
        left = {"unfinished": done.unfinished, "of_unfinished_draws": done.of_unfinished_draws}
        unknown = {"without_provenance": done.without_provenance}
        print_json({"file": str(done.file), "runs": done.runs, "bytes": size, "left_out": left} | unknown)
        return
    say(f"{done.file}: {counted(done.runs, 'run')}, {size / 1000:.0f} kB")
    if done.without_provenance:
        say(
            f"{done.without_provenance} of them lack provenance (device and software): records of an early version, or "
            "of lost workers; delete the folders of such runs, and the sweep's command trains them again"
        )
    if done.unfinished or done.of_unfinished_draws:
        say(
            f"left out: {counted(done.unfinished, 'run')} not ended, and {done.of_unfinished_draws} of draws that are "
            "not complete yet; the sweep's command continues them"
        )


def unpack(
    published: Annotated[Path, typer.Argument(help="Folder written by publish.")],
    folder: Annotated[Path, typer.Argument(help="The sweep's folder to put the records into.")],
    as_json: options.Json = False,
) -> None:
    """Put published records back into a sweep's folder, so that the sweep's command trains only missing runs."""
    from domainwise.core.phrasing import counted
    from domainwise.reports.publish import unpack as restore

    written, had = restore(published, folder)
    if as_json:
        print_json({"written": written, "there_already": had})
        return
    there = f"; {had} were there" if had else ""
    say(f"{counted(written, 'run')} put into {folder}{there}")
