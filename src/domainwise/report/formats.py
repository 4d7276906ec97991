"""One table in many forms: terminal, Markdown, LaTeX (booktabs), CSV."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table

from domainwise.protocol.statistics import Estimate
from domainwise.sweep.tables import AccuracyTable

NOT_RUN = "not run"


def cells(table: AccuracyTable) -> list[tuple[str, list[tuple[str, bool]]]]:
    """(method, [(text, is the best of its column)]) per row, the average and the difference to the baseline last."""
    columns: list[list[Estimate | None]] = [[row.cells.get(column) for row in table.rows] for column in table.columns]
    columns.append([row.average for row in table.rows])
    best = [max((e.mean for e in column if e is not None), default=None) for column in columns]
    result = []
    for i, row in enumerate(table.rows):
        line = []
        for column, top in zip(columns, best, strict=True):
            own = column[i]
            line.append((NOT_RUN, False) if own is None else (str(own), own.mean == top))
        line.append((str(row.difference) if row.difference else "", False))
        result.append((row.method, line))
    return result


def headings(table: AccuracyTable) -> list[str]:
    return ["algorithm", *table.columns, "average", f"minus {table.baseline}"]


@dataclass(frozen=True)
class Terminal:
    """The table for a terminal: a row per method or, where that is too wide, a column per method."""

    table: AccuracyTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.fitted(options.max_width)

    def fitted(self, width: int) -> Table:
        rows = [[(name, False) for name in headings(self.table)]]
        rows += [[(name, False), *line] for name, line in cells(self.table)]
        widths = [max(len(text) for text, _ in column) + 1 for column in zip(*rows, strict=True)]
        if sum(widths) > width:
            rows = [list(column) for column in zip(*rows, strict=True)]
        title, caption = escape(self.table.title), escape(self.table.caption)
        rich = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for i, (heading, _) in enumerate(rows[0]):
            rich.add_column(escape(heading), justify="right" if i else "left", overflow="fold")
        for row in rows[1:]:
            rich.add_row(*[f"[bold]{escape(text)}[/bold]" if bold else escape(text) for text, bold in row])
        return rich


def terminal(table: AccuracyTable) -> Terminal:
    return Terminal(table)


def markdown(table: AccuracyTable) -> str:
    names = [bars(name) for name in headings(table)]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for name, line in cells(table):
        shown = [f"**{text}**" if bold else text for text, bold in line]
        lines.append(f"| {' | '.join([bars(name), *shown])} |")
    return f"{table.title}\n\n" + "\n".join(lines) + f"\n\n{table.caption}\n"


def bars(text: str) -> str:
    """Plain text, safe in a cell of a Markdown table."""
    return text.replace("|", r"\|")


def latex(table: AccuracyTable) -> str:
    """For the packages booktabs and amsmath."""
    lines = [[tex(name), *[tex_number(*cell) for cell in line]] for name, line in cells(table)]
    return booktabs(headings(table), lines, 1, [f"{table.title}; {table.caption}"])


def booktabs(names: Sequence[str], lines: Sequence[Sequence[str]], words: int, notes: Sequence[str]) -> str:
    """A tabular whose first columns are words and the rest numbers, then notes as comments."""
    head = [rf"\begin{{tabular}}{{{'l' * words}{'r' * (len(names) - words)}}}", r"\toprule"]
    body = [" & ".join(map(tex, names)) + r" \\", r"\midrule", *(" & ".join(line) + r" \\" for line in lines)]
    return "\n".join([*head, *body, r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in notes), ""])


def tex_number(text: str, bold: bool = False) -> str:
    if not re.search(r"\d", text):
        return tex(text)
    body = text.replace("±", r"\pm")
    return rf"$\mathbf{{{body}}}$" if bold else f"${body}$"


def tex(text: str) -> str:
    """Plain text, safe in LaTeX."""
    special = {"\\": r"\textbackslash{}", "→": r"$\to$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: rf"\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)


def comma_separated(tables: Sequence[AccuracyTable]) -> str:
    """One line per cell: easy to read back into anything."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["dataset", "setting", "network", "steps", "selection", "method", "domain", "mean", "error", "trials", "draws"]
    )
    for table in tables:
        for row in table.rows:
            facts = [table.dataset, table.setting, table.network, row.steps, table.selection]
            for column, value in [*row.cells.items(), ("average", row.average)]:
                if value is not None:
                    writer.writerow([*facts, row.method, column, value.mean, value.error, value.n, row.draws])
    return out.getvalue()
