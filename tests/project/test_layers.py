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


def imports(file: Path) -> Iterator[tuple[str, int]]:
    """Every module of ours that a file imports, wherever in the file, and the line."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "domainwise":
            inside = node.module.partition(".")[2]
            for name in [inside] if inside else [alias.name for alias in node.names]:
                yield name, node.lineno
        elif isinstance(node, ast.Import):
            yield from ((a.name.partition(".")[2], node.lineno) for a in node.names if a.name.startswith("domainwise."))


def test_every_module_is_in_a_room() -> None:
    assert {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ROOMS)
    assert {path.stem for path in SOURCE.glob("*.py")} == AT_THE_ROOT


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_uses_only_those_below_it(room: str) -> None:
    below = ROOMS[: ROOMS.index(room) + 1]
    against = [
        f"{file.relative_to(SOURCE)}:{line} imports {module}"
        for file in sorted((SOURCE / room).rglob("*.py"))
        for module, line in imports(file)
        if module and module.partition(".")[0] in ROOMS and module.partition(".")[0] not in below
    ]
    assert not against, "\n".join(against)


def test_nothing_outside_kernels_imports_triton() -> None:
    outside = [file for file in SOURCE.rglob("*.py") if "kernels" not in file.parts]
    assert not [file for file in outside if "import triton" in file.read_text()]
