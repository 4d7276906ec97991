"""`domainwise data check`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from domainwise.cli import options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.cli.reading_flags import with_reading_flags
from domainwise.core import files
from domainwise.core.phrasing import counted
from domainwise.core.table import Table
from domainwise.protocol.reading import PLAIN, Reading

if TYPE_CHECKING:
    from domainwise.data.sources.check import Check

EXAMPLES = (
    "Examples:  [bold]domainwise data check ~/photos[/]   ·   [bold]domainwise data check ~/photos --preview p.png[/]"
)
COLUMNS = 8
"""With more classes, the table has no column per class."""
LINES = 20
"""Findings of a kind that are printed; --json has all."""


@with_reading_flags
def check(
    folder: Annotated[Path, typer.Argument(help="DIR of images at DIR/<domain>/<class>/<image>, or a table of files.")],
    reading: Reading = PLAIN,
    preview: Annotated[
        Path | None, typer.Option(help="Where to draw a sheet of samples (default: runs/check/NAME.png).")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Check your own images, a folder or a table: what would stop a training (exit 2), what might spoil its result."""
    from domainwise.core.files import writable_file
    from domainwise.data.sources.check import check as check_folder
    from domainwise.reports.pictures import folder_samples
    from domainwise.reports.style import check_format

    if preview is not None:
        check_format(preview, argument="preview")
    result = check_folder(folder, reading)
    sheet = preview or Path("runs/check") / f"{result.folder.name}.png"
    inside = preview is None and files.resolved(sheet).is_relative_to(result.folder.path)
    drawn = bool(result.facts) and not inside
    if inside:
        errors_console.print("no preview: nothing is written into the folder of images unasked; give --preview FILE")
    if drawn:
        folder_samples(result, writable_file(sheet, argument="preview"))
    if as_json:
        print_json(result.as_json() | {"preview": str(sheet) if drawn else None})
    else:
        _show(result)
        if drawn:
            say(f"Preview: {sheet}")
    if result.problems:
        raise typer.Exit(2)


def _show(result: "Check") -> None:
    classes = result.folder.classes
    shown = classes if len(classes) <= COLUMNS else ()
    rows = []
    for domain, counts in result.counts.items():
        present = {label: count for label, count in counts.items() if count}
        order = sorted(present, key=lambda label: present[label])
        ends = [f"{present[label]} {label}" for label in (*order[:1], *order[-1:])]
        cells = [str(counts[label] or "-") for label in shown] or [str(len(present)), *(ends or ["-", "-"])]
        rows.append((domain, f"{sum(counts.values()):,}", *cells))
    headings = ("domain", "images", *(shown or ("classes", "fewest", "most")))
    console.print(Table(headings, rows, result.folder.name))
    kinds = f"{counted(len(classes), 'class')} in {counted(len(result.folder.domains), 'domain')}"
    total = f"{len(result.facts):,} images of {kinds}"
    sizes = ", ".join(f"{name} {width}x{height}" for name, (width, height) in result.sizes.items())
    console.print(f"{total}; {sizes}" if sizes else total, highlight=False)
    for kind, style, lines in (
        ("note", "dim", result.notes),
        ("warning", "yellow", result.warnings),
        ("error", "red", result.problems),
    ):
        for line in lines[:LINES]:
            console.print(f"[{style}]{kind}:[/] {escape(line)}", highlight=False, soft_wrap=True)
        if len(lines) > LINES:
            console.print(f"[{style}]{kind}:[/] and {len(lines) - LINES} more (--json lists all)", highlight=False)
    if result.needed_window:
        console.print(f"add --window {result.needed_window} here and to every training", highlight=False)
    skippable = ", or train with --skip-bad" if len(result.problems) == len(result.bad) else ""
    stop = f"[red]a training would stop[/]: mend what is named{skippable}"
    console.print(stop if result.problems else "[green]ready to train[/]", highlight=False)
