"""The table model in every format, and results that show themselves as tables."""

import builtins
import csv
import io
import sys
from pathlib import Path
from typing import Any

import pytest

from domainwise.core.errors import UserError
from domainwise.core.table import Bold, Table, Tabular, comma_separated
from domainwise.reports.page.write import report
from domainwise.reports.paper_comparison import compare
from domainwise.sweeps.collection import collect
from domainwise.sweeps.tables import table
from handmade_records import COLOURS, write_sweep

SMALL = Table(("name", "x|y"), [["a<b", Bold("1.0 ± 0.5")], ["c", "2 x 3"]], "A title", notes=("one", "two"))


def test_every_format_shows_title_cells_and_notes() -> None:
    assert SMALL.markdown() == (
        "A title\n\n| name | x\\|y |\n|---|---|\n| a<b | **1.0 ± 0.5** |\n| c | 2 x 3 |\n\n- one\n- two\n"
    )
    assert r"a<b & $\mathbf{1.0 \pm 0.5}$ \\" in SMALL.latex() and r"c & 2 x 3 \\" in SMALL.latex()
    assert SMALL.latex().endswith("% A title\n% one\n% two\n")
    assert "<td>a&lt;b</td><td><b>1.0 ± 0.5</b></td>" in SMALL.html() and "<p>two</p>" in SMALL.html()
    lines = [line.strip() for line in SMALL.text().splitlines()]
    assert lines[0] == "A title" and lines[-2:] == ["one", "two"] and "a<b   1.0 ± 0.5" in lines


def test_a_wide_table_is_turned_only_if_that_is_narrower() -> None:
    wide = Table(["method", *(f"a long name {i}" for i in range(9))], [["ERM", *["1.0"] * 9]])
    tall = Table(("dataset", "number of the draw"), [[f"row {i}", "1.0"] for i in range(9)])
    assert len(wide.fitted(200).columns) == 10 and len(wide.fitted(60).columns) == 2
    assert len(tall.fitted(20).columns) == 2


def test_none_is_an_empty_cell_of_csv() -> None:
    text = comma_separated([{"a": None, "b": 0.1}, {"a": "x,y", "b": 2}])
    assert list(csv.reader(io.StringIO(text))) == [["a", "b"], ["", "0.1"], ["x,y", "2"]]


def test_results_are_tables_in_a_terminal_and_in_a_notebook(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path)
    tables, collection = table(folder), collect(folder)
    compared = compare("cmnist", collection)
    for result, words in ((tables, "51.0 ± 1.0"), (tables[0], "minus ERM"), (collection, "24 done"), (compared, "DAT")):
        assert words in repr(result) and "\x1b" not in repr(result)
        assert result._repr_html_().startswith("<table>") and words in result._repr_html_()


def test_results_are_data_frames(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    folder = write_sweep(tmp_path)
    frame = table(folder, "oracle").to_frame()
    dat = frame[(frame.method == "DAT") & (frame.domain == "average")]
    assert len(frame) == 2 * 4 and dat["mean"].item() == pytest.approx(61.0) and set(frame.domain) > set(COLOURS)
    curves = collect(folder).to_frame()
    assert set(curves.split) == {"in", "out"} and curves.accuracy.between(0, 1).all() and curves.run.nunique() == 24
    compared = compare("cmnist", collect(folder)).to_frame()
    assert len(compared) == 24 and compared["our mean"].isna().sum() == 8


def test_a_stub_of_pandas_gets_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rows(Tabular):
        def to_records(self) -> list[dict[str, Any]]:
            return [{"a": 1}]

    stub = type(sys)("pandas")
    stub.DataFrame = tuple  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", stub)
    assert Rows().to_frame() == ({"a": 1},)


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return whole(name, *rest)

    tables = table(write_sweep(tmp_path))
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="pip install pandas"):
        tables.to_frame()


def test_tables_and_the_page_of_a_folder(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "runs")
    assert [one.selection for one in table(str(folder), "all")] == ["training-domain", "oracle", "worst-domain"]
    with pytest.raises(UserError, match="unknown selection rule 'orakel'"):
        table(folder, "orakel")
    with pytest.raises(UserError, match=r"unknown algorithm 'DAT .x.'"):
        table(folder, baseline="DAT (x)")
    page = report(str(folder), tmp_path / "page.html", baseline="DAT", models=False)
    assert page == tmp_path / "page.html" and "minus DAT" in page.read_text()
