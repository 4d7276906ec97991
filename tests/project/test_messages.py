"""Messages of the library are in Python's terms: flags are for the command line, and for commands of reports."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from documents import ROOT

SOURCE = ROOT / "src" / "domainwise"
FLAG = re.compile(r"(^|[\s'\"(])--[a-z]|\bdomainwise [a-z]+")
WORDS_COMMANDS = ("cli", "sweeps/commands.py", "core/phrasing.py")
"""Where commands are put into words."""
OTHER_PROGRAMS = ("sweeps/slurm.py", "core/provenance.py", "engine/execution/ranks.py")
"""Where squeue, git and torchrun are called or named."""


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """The text of a file's literals and their lines, without docstrings."""
    tree = ast.parse(file.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_messages_of_the_library_name_no_flags() -> None:
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        if not name.startswith((*WORDS_COMMANDS, *OTHER_PROGRAMS)):
            found += [f"{name}:{line} {text!r}" for line, text in texts(file) if FLAG.search(text)]
    assert not found, "\n".join(found)
