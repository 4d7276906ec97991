"""Where commands write: results to standard output, progress and errors to standard error."""

import json
from typing import Any

from rich.console import Console


def _console(stderr: bool) -> Console:
    """A terminal has its own width; a file or pipe gets lines long enough for a table."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=120)


console = _console(stderr=False)
"""Results go here."""
errors_console = _console(stderr=True)
"""Progress and errors go here, so that standard output is clean for scripts."""


def say(line: str, to: Console = console) -> None:
    """A line as it stands: brackets in a user's names are no markup, and where to break it is the terminal's matter."""
    to.print(line, soft_wrap=True, highlight=False, markup=False)


def print_json(value: Any) -> None:
    console.file.write(json.dumps(value, indent=1) + "\n")
