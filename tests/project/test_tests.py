"""How tests are filed: folders as in src/domainwise, and what several test modules share in tests/support."""

import ast
from pathlib import Path

import pytest

from documents import ROOT

TESTS = ROOT / "tests"
MODULES = sorted(TESTS.rglob("test_*.py"))
SUPPORT = sorted((TESTS / "support").glob("*.py"))
OTHER_FOLDERS = {"project", "support"}


def imported(file: Path) -> set[str]:
    """The top-level names of all modules that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def test_no_module_imports_a_test_module() -> None:
    tests = {file.stem for file in MODULES}
    assert len(tests) == len(MODULES), "two test modules have one name"
    for file in (*MODULES, *SUPPORT, TESTS / "conftest.py"):
        assert not imported(file) & tests, f"{file.relative_to(ROOT)}: put what is shared into tests/support"


@pytest.mark.parametrize("folder", sorted({file.relative_to(TESTS).parts[0] for file in TESTS.rglob("*.py")}))
def test_every_folder_is_one_of_the_source(folder: str) -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "domainwise").glob("*/__init__.py")}
    assert folder in rooms | OTHER_FOLDERS | {"conftest.py"}


def test_every_support_module_is_shared() -> None:
    used = set().union(*(imported(file) for file in (*MODULES, *SUPPORT, TESTS / "conftest.py")))
    assert {file.stem for file in SUPPORT} <= used
