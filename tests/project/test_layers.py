"""Imports point one way: a room uses the rooms below it, never those above; reading results needs no torch."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "domainwise"
ROOMS = (
    "core",
    "protocol",
    "kernels",
    "data",
    "nets",
    "algorithms",
    "engine",
    "sweeps",
    "models",
    "analysis",
    "serving",
    "paper",
    "reports",
    "cli",
)
"""From the ground up."""
AT_THE_ROOT = {"__init__", "__main__"}
USES_THE_ROOT = {"protocol/runs.py"}
"""Files that import the package as a whole, which is above all rooms: `Run.plan`, a name of the last release."""


def imports(file: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports by its full name, wherever in the file and however written, and the line."""
    package = ".".join(file.relative_to(SOURCE.parent).parts[:-1])
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            levels = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*levels, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "domainwise" else [module]
            yield from ((name, node.lineno) for name in names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
        ):
            yield from ((one.value, node.lineno) for one in node.args[:1] if isinstance(one, ast.Constant))


def against_the_order(file: Path, source: Path = SOURCE) -> list[str]:
    """The imports of a file from the rooms above its own, or from the root."""
    room, name = file.relative_to(source).parts[0], file.relative_to(source).as_posix()
    allowed = {"", *ROOMS} if room == ROOMS[-1] or name in USES_THE_ROOT else set(ROOMS)
    allowed -= set(ROOMS[ROOMS.index(room) + 1 :])
    wrong = []
    for module, line in imports(file):
        package, _, inside = module.partition(".")
        if package == "domainwise" and inside != "__version__" and inside.partition(".")[0] not in allowed:
            wrong.append(f"{name}:{line} imports {module}")
    return wrong


def test_every_module_is_in_a_room() -> None:
    assert {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ROOMS)
    assert {path.stem for path in SOURCE.glob("*.py")} == AT_THE_ROOT


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_uses_only_those_below_it(room: str) -> None:
    against = [line for file in sorted((SOURCE / room).rglob("*.py")) for line in against_the_order(file)]
    assert not against, "\n".join(against)


@pytest.mark.parametrize(
    "statement",
    [
        "from domainwise.cli import progress",
        "import domainwise.cli.progress",
        "from domainwise import cli",
        "from domainwise import fit",
        "from ..cli import progress",
        "from .. import cli",
        "def later():\n    import domainwise",
        "import importlib\nimportlib.import_module('domainwise.cli.progress')",
    ],
)
def test_every_way_of_importing_upwards_is_seen(
    statement: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "domainwise"
    monkeypatch.setitem(imports.__globals__, "SOURCE", source)
    file = source / "sweeps" / "probe.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"{statement}\nfrom domainwise.core import files\nfrom . import other\nimport torch\n")
    assert len(against_the_order(file, source)) == 1


def test_nothing_outside_kernels_imports_triton() -> None:
    for file in SOURCE.rglob("*.py"):
        if "kernels" not in file.relative_to(SOURCE).parts:
            assert not [name for name, _ in imports(file) if name.partition(".")[0] == "triton"], file
