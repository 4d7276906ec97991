"""`domainwise table` and `domainwise export-domainbed`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from domainwise.cli import complete, options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.core.errors import unknown

if TYPE_CHECKING:
    from domainwise.core.table import Tabular

EXAMPLES = (
    "Examples:  [bold]domainwise table runs/sweep --selection all[/]   ·   "
    "[bold]domainwise table runs/sweep --format latex > table.tex[/]   ·   "
    "[bold]domainwise table runs/sweep --paper table1[/]"
)
EXPORT_EXAMPLES = "Examples:  [bold]domainwise export-domainbed runs/sweep domainbed_output[/]"
FORMATS = ("terminal", "markdown", "latex", "csv", "json")


def _selections(incomplete: str) -> list[str]:
    from domainwise.protocol.selection import RULES

    return complete.among(*RULES, "all")(incomplete)


def table(
    folder: Annotated[Path, typer.Argument(help="A sweep's folder, or an output folder of DomainBed.")],
    selection: Annotated[
        str | None,
        typer.Option(
            help="training-domain, leave-one-domain-out, oracle, validation-domain, worst-domain, worst-subgroup, "
            "or all (default: the dataset's).",
            autocompletion=_selections,
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="terminal, markdown, latex, csv or json.")] = "terminal",
    baseline: options.Baseline = "ERM",
    paper: Annotated[str | None, typer.Option(help="Compare with a table of the paper: its number or label.")] = None,
    partial: options.Partial = False,
    metric: options.MetricName = "accuracy",
    as_json: options.Json = False,
) -> None:
    """Accuracy, or another metric, per unseen domain and average, with the selection rule that chose it.

    Runs that failed or are not finished are left out, and the caption says which.
    """
    from domainwise.core.table import comma_separated
    from domainwise.sweeps.domainbed import collect_results
    from domainwise.sweeps.tables import accuracy_tables

    form = "json" if as_json else form
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    collection = collect_results(folder, partial)
    print_notes(collection.notes)
    if paper is not None or form == "csv":  # which have no caption
        print_notes(collection.completeness().sentences)
    if paper is not None:
        from domainwise.reports.paper_comparison import compare

        compared = compare(paper, collection)
        if form == "json":
            print_json(compared.as_json())
        elif form == "csv":
            console.file.write(comma_separated(compared.to_records()))
        elif form == "terminal":
            console.print(compared)
        else:
            console.file.write(_rendered(compared, form))
        return
    tables = accuracy_tables(folder, collection, selection, baseline, metric)
    if form == "json":
        print_json({"tables": [one.as_json() for one in tables]})
    elif form == "csv":
        print_notes([note for one in tables for note in one.not_judged])
        console.file.write(comma_separated(tables.to_records()))
    elif form == "terminal":
        for one in tables:
            console.print(one)
            for row in one.rows:
                if row.difference is not None:
                    say(one.sentence(row.method))
            if one.test:
                say(one.test)
    else:
        console.file.write("\n".join(_rendered(one, form) for one in tables))


def _rendered(result: "Tabular", form: str) -> str:
    table = result.as_table()
    return table.markdown() if form == "markdown" else table.latex()


def print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        say(f"note: {note}", errors_console)


def export(
    folder: options.SweepFolder,
    target: Annotated[Path, typer.Argument(help="A new folder for DomainBed's format.")],
) -> None:
    """Write a sweep's records the way DomainBed writes them: one folder per run with results.jsonl and done."""
    from domainwise.core.phrasing import counted
    from domainwise.sweeps.collection import collect, distinct
    from domainwise.sweeps.domainbed_export import export_domainbed

    count = export_domainbed(folder, target)
    collection = collect(folder)
    print_notes(collection.notes)
    say(f"{counted(count, 'run')} written to {target}")
    if left := len(distinct(collection.curves)) - count:
        console.print(
            f"{counted(left, 'run')} left out: DomainBed only knows training on all domains but the unseen ones"
        )
