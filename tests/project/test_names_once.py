"""One name, one meaning: no two classes or types of the package have the same name."""

import ast
from collections import defaultdict
from collections.abc import Iterator

from documents import ROOT

NO_TYPES = ("Annotated[", "TypeVar(", "ParamSpec(")
"""Options of commands are named like what they choose; type variables mean nothing."""


def types(file: ast.Module) -> Iterator[tuple[str, str]]:
    """(name, definition) of the classes and the types with a name at the top of a file."""
    for node in file.body:
        if isinstance(node, ast.ClassDef):
            yield node.name, f"class at line {node.lineno}"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, definition = node.targets[0].id, ast.unparse(node.value)
            if name[:1].isupper() and not name.isupper() and not definition.startswith(NO_TYPES):
                yield name, definition


def test_no_two_types_share_a_name() -> None:
    meanings: dict[str, dict[str, str]] = defaultdict(dict)
    for file in sorted((ROOT / "src" / "domainwise").rglob("*.py")):
        for name, definition in types(ast.parse(file.read_text())):
            place = str(file.relative_to(ROOT))
            meanings[name][f"{place}, {definition}" if definition.startswith("class") else definition] = place
    assert not {name: places for name, places in meanings.items() if len(places) > 1 and not name.startswith("_")}
