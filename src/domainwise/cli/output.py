"""Where commands write: results to standard output, progress and errors to standard error."""

import json
from typing import Any

from rich.console import Console


def _console(stderr: bool) -> Console:
    """A console as wide as the terminal, or 120 columns for a file or pipe."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=120)


console = _console(stderr=False)
"""Results go here."""
errors_console = _console(stderr=True)
"""Progress and errors go here, so that standard output is clean for scripts."""


def say(line: str, to: Console = console) -> None:
    """Prints a line unchanged: brackets in names are not markup, and only the terminal wraps it."""
    to.print(line, soft_wrap=True, highlight=False, markup=False)


def print_json(value: Any) -> None:
    console.file.write(json.dumps(value, indent=1) + "\n")
