"""Where commands write: results to standard output, progress and errors to standard error."""

import json
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

from domainwise.core.printing import printable


class _Escaped:
    """What it shows, without control characters that names bring along; those of the console itself stay."""

    def __init__(self, shown: ConsoleRenderable) -> None:
        self.shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self.shown, options):
            safe = text if control else "\n".join(map(printable, text.split("\n")))
            yield Segment(safe, style, control)


class _EscapeNames(RenderHook):
    """Applies to everything a console prints."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(one) for one in renderables]


def _console(stderr: bool) -> Console:
    """A console as wide as the terminal, or 120 columns for a file or pipe."""
    console = Console(stderr=stderr)
    console = console if console.is_terminal else Console(stderr=stderr, width=120)
    console.push_render_hook(_EscapeNames())
    return console


console = _console(stderr=False)
"""Results go here."""
errors_console = _console(stderr=True)
"""Progress and errors go here, so that standard output is clean for scripts."""


def say(line: str, to: Console = console) -> None:
    """Prints one line: brackets in names are not markup, and only the terminal wraps it."""
    to.print(printable(line), soft_wrap=True, highlight=False, markup=False)


def print_json(value: Any) -> None:
    console.file.write(json.dumps(value, indent=1) + "\n")
