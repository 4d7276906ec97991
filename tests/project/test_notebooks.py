"""The notebooks: valid files without stored output, whose cells run in order, here with small settings."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch

from documents import ROOT

SMALL: dict[str, dict[str, Any]] = {
    "dat-from-its-equation": {"STEPS": 2, "BATCH": 4, "SEEDS": 1},
    "your-own-photos": {"STEPS": 2, "TRIALS": 1, "PER_CLASS": 8},
}
"""{notebook: values in place of those of its cell tagged "parameters"}."""
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))


def cells(notebook: Path) -> list[dict[str, Any]]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """Executes a cell as a notebook does: the value of a last expression is shown."""
    tree = ast.parse(source)
    shown = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)
    return None if shown is None else repr(eval(compile(shown, "cell", "eval"), namespace))


def test_every_notebook_has_small_settings() -> None:
    assert {notebook.stem for notebook in NOTEBOOKS} == SMALL.keys()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebooks_are_valid_and_hold_no_output(notebook: Path) -> None:
    book = json.loads(notebook.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5) and book["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids) and all(1 <= len(one) <= 64 for one in ids)
    assert book["cells"][0]["cell_type"] == "markdown" and book["cells"][0]["source"][0].startswith("# ")
    for cell in book["cells"]:
        code = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert cell.keys() == {"cell_type", "id", "metadata", "source"} | code
        assert not code or (cell["outputs"] == [] and cell["execution_count"] is None), "clear all outputs"
    tagged = [cell for cell in book["cells"] if "parameters" in cell["metadata"].get("tags", ())]
    names = {node.id for node in ast.walk(ast.parse("".join(tagged[0]["source"]))) if isinstance(node, ast.Name)}
    assert len(tagged) == 1 and SMALL[notebook.stem].keys() <= names


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_links_of_notebooks_lead_somewhere(notebook: Path) -> None:
    for cell in cells(notebook):
        for target in re.findall(r"\]\(([^)#\s]+)", "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""):
            assert target.startswith("http") or (notebook.parent / target).exists(), target


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_every_cell_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / ".cache"))
    namespace: dict[str, Any] = {"__name__": "notebook"}
    state = torch.get_rng_state()
    try:
        for cell in (cell for cell in cells(notebook) if cell["cell_type"] == "code"):
            run_cell("".join(cell["source"]), namespace)
            if "parameters" in cell["metadata"].get("tags", ()):
                namespace |= SMALL[notebook.stem]
    finally:
        torch.set_rng_state(state)
        plt.close("all")
