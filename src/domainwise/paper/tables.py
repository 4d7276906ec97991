"""The paper's tables of accuracies, as data: types and look-up. The numbers stand in `numbers.py`, as printed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from domainwise.core.errors import unknown
from domainwise.paper.numbers import APPENDIX, MAIN_PAPER

OVER_DATASETS = "average over datasets"

SELECTION = {
    "ColoredMNIST": "oracle",
    "NICO": "validation-domain",
    "PACS": "training-domain",
    "TerraIncognita": "training-domain",
    "MixedSame": "training-domain",
    "Digits": "last",
}
"""The paper's rule of model selection per dataset (appendix A.2), where a table does not say otherwise."""


class AscentSearch(NamedTuple):
    """Where radius and step size of the ascent were searched: {name: (low, high)}, exponents of ten."""

    norm: str
    ranges: dict[str, tuple[float, float]]


class PaperSearch(NamedTuple):
    """The search behind a row of a table."""

    dataset: str
    algorithm: str
    setting: str
    variant: str


@dataclass(frozen=True)
class Published:
    """One printed accuracy, in percent."""

    dataset: str
    algorithm: str
    domain: str  # the unseen domain, or "average" over all of them
    mean: float
    error: float | None
    selection: str  # "training-domain", "oracle", "validation-domain", or "last": the last model, nothing searched
    setting: str = "multi"  # or "single": one training domain
    train: str | None = None  # the training domain in the single setting; None for an average over all of them
    variant: str = ""  # which search, where one algorithm has several: "l2, eps 1e-2..1e-1, alpha 1e-4..1e-3"
    note: str = ""

    @property
    def search(self) -> PaperSearch:
        return PaperSearch(self.dataset, self.algorithm, self.setting, self.variant)


@dataclass(frozen=True)
class PaperTable:
    """One table, or labelled sub-table, of the paper."""

    number: str  # as printed; sub-tables share it; empty for numbers given in the text
    label: str  # the paper's own, without prefix
    title: str
    published: tuple[Published, ...]
    notes: tuple[str, ...]


def find_table(name: str) -> PaperTable:
    """A table by number ("1", "table1", "Table 15c") or label ("bench", "tab:bench"). "15" is all its sub-tables."""
    key = re.sub(r"^(table|tab)[\s.:]*", "", name.strip().lower())
    if key not in _BY_NAME:
        numbers = {f"table{table.number}" for table in TABLES if table.number}
        raise unknown("table of the paper", name, numbers | {table.label for table in (*TABLES, SINGLE_SOURCE)})
    return _BY_NAME[key]


def _tables(text: str) -> Iterator[PaperTable]:
    """Reads the paragraphs of `numbers.py`: of every table a heading, then grids."""
    for table in re.split(r"^(?=Table |Text )", text.strip(), flags=re.MULTILINE)[1:]:
        heading, *grids = table.strip().split("\n\n")
        first, *notes = heading.splitlines()
        number, label, title = _columns(first)
        starred = next((note.removeprefix("* ") for note in notes if note.startswith("* ")), "")
        published = tuple(cell for grid in grids for cell in _cells(grid, starred))
        number = number.removeprefix("Table ") if number != "Text" else ""
        yield PaperTable(number, label, title, published, tuple(note.removeprefix("* ") for note in notes))


def _cells(grid: str, starred: str) -> Iterator[Published]:
    """Reads one grid, row by row."""
    lines = [_columns(line) for line in grid.splitlines()]
    common = dict(fact.split("=") for fact in lines.pop(0)) if "=" in grid else {}
    (corner, *columns), *rows = lines
    row_is, column_is = corner.split(" / ")
    for row, *entries in rows:
        for column, entry in zip(columns, entries, strict=True):
            if entry != "-":
                note = starred if entry.endswith("*") else ""
                yield _published({**common, row_is: row, column_is: column, "note": note}, entry.rstrip(" *"))


def _published(cell: dict[str, str], entry: str) -> Published:
    mean, _, error = entry.partition(" ± ")
    dataset, train = cell["dataset"], cell.get("train")
    return Published(
        dataset if dataset != "Avg" else OVER_DATASETS,
        cell["algorithm"],
        cell.get("domain", "test" if dataset == "NICO" else "average"),
        float(mean),
        float(error) if error else None,
        cell.get("selection") or SELECTION[dataset],
        cell.get("setting", "multi"),
        train if train != "average" else None,
        cell.get("variant", ""),
        cell["note"],
    )


def _columns(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def _ascent(variant: str) -> AscentSearch:
    """ "l2, eps 1e-2..1e-1, alpha 1e-4..1e-3" -> ("l2", {"eps": (-2, -1), "alpha": (-4, -3)})."""
    spans = re.findall(r"(\w+) 1e(-?\d+)\.\.1e(-?\d+)", variant)
    return AscentSearch(variant.partition(",")[0], {name: (float(low), float(high)) for name, low, high in spans})


TABLES: tuple[PaperTable, ...] = (*_tables(MAIN_PAPER), *_tables(APPENDIX))
"""Every table with accuracies, in the paper's order; the eight sub-tables of Table 15 each on its own."""

VARIANTS = {cell.variant: _ascent(cell.variant) for table in TABLES for cell in table.published if cell.variant}
"""The searches that a table compares, by name."""

_PARTS = [table for table in TABLES if table.number == "15"]

SINGLE_SOURCE = PaperTable(
    number="15",
    label="singlesource",
    title="Test accuracy (single-source domain generalization)",
    published=tuple(cell for part in _PARTS for cell in part.published),
    notes=tuple(note for part in _PARTS for note in part.notes),
)
"""Table 15 as a whole. The paper labels its sub-tables only: this label is ours."""

_BY_NAME = {
    **{name: table for table in TABLES for name in (table.number, table.label.lower()) if name},
    **{f"15{letter}": part for letter, part in zip("abcdefgh", _PARTS, strict=True)},
    **dict.fromkeys((SINGLE_SOURCE.number, SINGLE_SOURCE.label), SINGLE_SOURCE),
}
