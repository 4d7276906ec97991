"""`domainwise figure`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import complete, options
from domainwise.cli.output import print_json, say

EXAMPLES = (
    "Examples:  [bold]domainwise figure curves runs/demo[/]   ·   "
    "[bold]domainwise figure batch-size runs/sweep --algorithms DAT --out batch-size.pdf[/]   ·   "
    "[bold]domainwise figure eps-alpha runs/sweep --selection oracle --out radius.svg[/]"
)


def figure(
    name: Annotated[
        str,
        typer.Argument(
            help="methods, domains, curves, memory, draws, eps-alpha, radius, norms, batch-size or penalties.",
            autocompletion=complete.among(
                *("methods", "domains", "curves", "memory", "draws", "eps-alpha", "radius", "norms", "batch-size"),
                "penalties",
            ),
        ),
    ],
    folder: options.ResultsFolder,
    out: Annotated[
        Path | None, typer.Option(help="File: .pdf, .png or .svg (default: NAME.png in the folder).")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Which dataset, if the folder has several.")] = None,
    algorithms: Annotated[
        str, typer.Option(help="Only these, separated by commas (default: all that have the runs).")
    ] = "",
    selection: Annotated[
        str | None, typer.Option(help="Selection rule of steps and runs (default: the dataset's).")
    ] = None,
    dark: Annotated[bool, typer.Option("--dark", help="Light on black, for dark slides and pages.")] = False,
    partial: options.Partial = False,
    as_json: options.Json = False,
) -> None:
    """Draw an ablation or learning curves from records, for a paper or a slide.

    [bold]methods[/] side by side · [bold]domains[/] each method on each unseen domain · [bold]curves[/] accuracy
    against steps · [bold]memory[/] memorisation of training images · [bold]draws[/] accuracy against the number of
    draws · [bold]eps-alpha[/] radius x step size · [bold]radius[/] against accuracy · [bold]norms[/] l2 against l_inf ·
    [bold]batch-size[/] with regression lines · [bold]penalties[/] of IRM, AT and DAT against steps.
    """
    from domainwise.cli.table import print_notes
    from domainwise.core import files
    from domainwise.core.errors import unknown
    from domainwise.protocol.selection import RULES
    from domainwise.reports.figures import draw
    from domainwise.reports.style import check_format, save
    from domainwise.sweeps.domainbed import collect_results

    path = out or folder / f"{name}.png"
    check_format(path)
    if selection is not None and selection not in RULES:
        raise unknown("selection rule", selection, RULES)
    collection = collect_results(folder, partial)
    print_notes(collection.notes)
    files.writable_file(path)
    wanted = options.parse_names(algorithms)
    drawing = draw(name, folder, collection, dataset=dataset, algorithms=wanted, rule=selection)
    save(drawing.figure, path, dark=dark)
    if as_json:
        facts = {"figure": str(path), "title": drawing.title, "caption": drawing.caption}
        print_json(facts | {"sentences": list(drawing.sentences)})
        return
    for sentence in (drawing.title, *drawing.sentences):
        say(sentence)
    say(f"Figure: {path}")
