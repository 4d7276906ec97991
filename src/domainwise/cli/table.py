"""`domainwise table` and `domainwise export-domainbed`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import complete
from domainwise.cli.common import Json, console, errors_console, print_json, say
from domainwise.core.errors import UserError, unknown

EXAMPLES = (
    "Examples:  [bold]domainwise table runs/sweep --selection all[/]   ·   "
    "[bold]domainwise table runs/sweep --format latex > table.tex[/]   ·   "
    "[bold]domainwise table runs/sweep --paper table1[/]"
)
EXPORT_EXAMPLES = "Examples:  [bold]domainwise export-domainbed runs/sweep domainbed_output[/]"
SELECTIONS = ("training-domain", "leave-one-domain-out", "oracle", "validation-domain", "all")
FORMATS = ("terminal", "markdown", "latex", "csv", "json")


def table(
    folder: Annotated[Path, typer.Argument(help="A sweep's folder, or an output folder of DomainBed.")],
    selection: Annotated[
        str | None,
        typer.Option(
            help="training-domain, leave-one-domain-out, oracle, validation-domain, or all (default: the dataset's).",
            autocompletion=complete.among(*SELECTIONS),
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="terminal, markdown, latex, csv or json.")] = "terminal",
    baseline: Annotated[str, typer.Option(help="What paired differences are taken to.")] = "ERM",
    paper: Annotated[
        str | None, typer.Option(help="Put a table of the paper beside ours: its number or label.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Accuracy per unseen domain and average, with the selection rule that chose it."""
    from domainwise.algorithms import ALGORITHMS
    from domainwise.protocol.selection import RULES
    from domainwise.report import formats
    from domainwise.report import paper_comparison as beside
    from domainwise.sweep.domainbed import collect_any
    from domainwise.sweep.tables import tables

    form = "json" if as_json else form
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if selection not in (None, "all", *RULES):
        raise unknown("selection rule", str(selection), [*RULES, "all"])
    if baseline.split(" (")[0] not in ALGORITHMS:
        raise unknown("algorithm", baseline, ALGORITHMS)
    collection = collect_any(folder)
    print_notes(collection.notes)
    if paper is not None:
        rows = beside.compare(paper, collection)
        if form == "json":
            print_json(beside.as_json(paper, rows))
        elif form == "terminal":
            console.print(beside.terminal(paper, rows))
        elif form == "csv":
            console.file.write(beside.comma_separated(rows))
        else:
            console.file.write((beside.markdown if form == "markdown" else beside.latex)(paper, rows))
        return
    if not collection.runs:
        raise UserError(f"{folder}: nothing to show; give the folder of a sweep (its --out), or of DomainBed")
    rules: list[str | None] = [*RULES] if selection == "all" else [selection]
    found = [one for rule in rules for one in tables(collection, rule, baseline)]
    if not found:
        rule = f"{selection} validation" if selection else "its dataset's selection rule"
        raise UserError(
            f"{folder}: nothing to show; no run there has the evaluations that {rule} needs; see --selection all"
        )
    if form == "json":
        print_json({"tables": [one.as_json() for one in found]})
    elif form == "csv":
        console.file.write(formats.comma_separated(found))
    elif form == "terminal":
        for one in found:
            console.print(formats.terminal(one))
            for row in one.rows:
                if row.difference is not None:
                    say(one.sentence(row.method))
    else:
        render = {"markdown": formats.markdown, "latex": formats.latex}[form]
        console.file.write("\n".join(render(one) for one in found))


def print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        say(f"note: {note}", errors_console)


def export(
    folder: Annotated[Path, typer.Argument(help="A sweep's folder.")],
    target: Annotated[Path, typer.Argument(help="A new folder for DomainBed's format.")],
) -> None:
    """Write a sweep's records the way DomainBed writes them: one folder per run with results.jsonl and done."""
    from domainwise.core.phrasing import counted
    from domainwise.sweep.collection import collect
    from domainwise.sweep.domainbed import export_domainbed

    count = export_domainbed(folder, target)
    collection = collect(folder)
    print_notes(collection.notes)
    say(f"{counted(count, 'run')} written to {target}")
    if left := len(collection.curves) - count:
        console.print(
            f"{counted(left, 'run')} left out: DomainBed only knows training on all domains but the unseen ones"
        )
