"""Cells that spreadsheets would take for formulas."""

import csv
import io

import pytest

from domainwise.core.spreadsheet import cell, comma_separated_rows
from domainwise.core.table import comma_separated


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@SUM(A1)", "\tx", "\rx", "=cmd|' /C calc'!A0", "-", "--5"])
def test_text_that_would_be_a_formula_is_marked(text: str) -> None:
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["-1.5", "+3", "-1e-05", "x=1", "", "photo.png", -1.5, None, 3, "-inf"])
def test_numbers_and_other_text_are_not_changed(value: object) -> None:
    assert cell(value) is value


def test_headings_and_cells_of_every_writer_are_marked() -> None:
    rows = list(csv.reader(io.StringIO(comma_separated_rows(["file", "=class"], [["@a\nb", "-0.5"], [None, "x,y"]]))))
    assert rows == [["file", "'=class"], ["'@a\nb", "-0.5"], ["", "x,y"]]
    assert comma_separated([{"=a": -1.0, "b": "=b"}]) == "'=a,b\n-1.0,'=b\n"
