"""One model of a table, a renderer for each format, and results that show themselves as one.

rich and pandas are imported where they are used: reading results must not wait for them.
"""

import html
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from domainwise.core.errors import UserError
from domainwise.core.printing import printable
from domainwise.core.spreadsheet import comma_separated_rows

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table as RichTable

NOT_RUN = "not run"
NUMBER = re.compile(r"[+-]?[\d.]+( ± [\d.]+)?")
"""A cell that LaTeX sets as mathematics."""
WIDTH = 120
"""Of a table in characters, where no terminal says how wide it is."""


class Bold(str):
    """A cell in bold: the best of its column."""

    __slots__ = ()


@dataclass(frozen=True)
class Table:
    """Headings and rows of text; the first `labels` columns are words, the others numbers."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""
    notes: Sequence[str] = ()
    labels: int = 1

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RichTable]":
        yield self.fitted(options.max_width)

    def fitted(self, width: int) -> "RichTable":
        """For a terminal. A table that is too wide has its rows as columns, if that is narrower."""
        from rich.box import SIMPLE_HEAD
        from rich.markup import escape
        from rich.table import Table as RichTable

        lines: Sequence[Sequence[str]] = [[_shown(text) for text in line] for line in (self.headings, *self.rows)]
        labels, turned = self.labels, list(zip(*lines, strict=True))
        if _width(lines) > max(width, _width(turned)):
            lines, labels = turned, 1
        below = "\n".join(printable(line) for line in (self.caption, *self.notes) if line)
        rich = RichTable(
            title=escape(printable(self.title)) or None,
            caption=escape(below) or None,
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        for i, heading in enumerate(lines[0]):
            rich.add_column(escape(heading), justify="left" if i < labels else "right", overflow="fold")
        for line in lines[1:]:
            rich.add_row(*[f"[bold]{escape(t)}[/bold]" if isinstance(t, Bold) else escape(t) for t in line])
        return rich

    def text(self, width: int = WIDTH) -> str:
        """As a terminal shows it, without colours."""
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=width, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())

    def markdown(self) -> str:
        below = [self.caption] if self.caption else [f"- {note}" for note in self.notes]
        return "\n".join([self.title, "", self.markdown_rows(), "", *below]) + "\n"

    def markdown_rows(self) -> str:
        """Headings and rows alone."""
        lines = [[_shown(t) for t in line] for line in (self.headings, ["---"] * len(self.headings), *self.rows)]
        cells = [[f"**{t}**" if isinstance(t, Bold) else t.replace("|", r"\|") for t in line] for line in lines]
        return "\n".join(f"|{'|'.join(line)}|" if i == 1 else f"| {' | '.join(line)} |" for i, line in enumerate(cells))

    def latex(self) -> str:
        """For the packages booktabs and amsmath; title, caption and notes are comments."""
        columns = "l" * self.labels + "r" * (len(self.headings) - self.labels)
        lines = [" & ".join(tex(t) if i < self.labels else tex_number(t) for i, t in enumerate(r)) for r in self.rows]
        head = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", " & ".join(map(tex, self.headings)) + r" \\"]
        foot = [r"\bottomrule", r"\end{tabular}"]
        comments = [f"{self.title}; {self.caption}" if self.caption else self.title, *self.notes]
        body = [r"\midrule", *(rf"{line} \\" for line in lines)]
        return "\n".join([*head, *body, *foot, *(f"% {comment}" for comment in comments), ""])

    def html(self) -> str:
        """For notebooks."""

        def row(tag: str, cells: Sequence[str]) -> str:
            shown = (f"<b>{html.escape(t)}</b>" if isinstance(t, Bold) else html.escape(t) for t in cells)
            return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in shown)}</tr>"

        title = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        below = "".join(f"<p>{html.escape(line)}</p>" for line in (self.caption, *self.notes) if line)
        body = "".join(row("td", cells) for cells in self.rows)
        return f"<table>{title}<thead>{row('th', self.headings)}</thead><tbody>{body}</tbody></table>{below}"


class Tabular:
    """A result that shows itself as a table: in a terminal, a notebook, or as a pandas DataFrame."""

    __slots__ = ()

    def as_table(self) -> Table:
        """For people: text, rounded."""
        raise NotImplementedError

    def to_records(self) -> Sequence[Mapping[str, Any]]:
        """For programs: one flat row per number, exact."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """The records as a pandas DataFrame."""
        try:
            import pandas as pd  # type: ignore[import-untyped]
        except ImportError:
            raise UserError("a data frame needs pandas, which is not installed: pip install pandas") from None
        return pd.DataFrame(list(self.to_records()))

    def __repr__(self) -> str:
        return self.as_table().text()

    def _repr_html_(self) -> str:
        return self.as_table().html()

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Table]":
        yield self.as_table()


def comma_separated(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as CSV that spreadsheets open safely; None is an empty cell."""
    headings = list(records[0]) if records else []
    return comma_separated_rows(headings, ([record.get(name) for name in headings] for record in records))


def _shown(text: str) -> str:
    return text if text.isprintable() else printable(text)  # a bold cell stays bold


def _width(lines: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 1 for column in zip(*lines, strict=True))


def tex_number(text: str) -> str:
    if not NUMBER.fullmatch(text):
        return tex(text)
    body = text.replace("±", r"\pm")
    return rf"$\mathbf{{{body}}}$" if isinstance(text, Bold) else f"${body}$"


def tex(text: str) -> str:
    """Plain text, safe in LaTeX."""
    special = {"\\": r"\textbackslash{}", "→": r"$\to$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: rf"\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)
