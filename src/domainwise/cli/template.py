"""`domainwise template`."""

from importlib import resources
from typing import Annotated

import typer

from domainwise.cli import complete
from domainwise.cli.output import console
from domainwise.core.errors import unknown

EXAMPLES = (
    "Examples:  [bold]domainwise template algorithm > mine.py[/]   ·   [bold]domainwise --plugin mine.py train "
    "--dataset BackgroundDigits --algorithm WorstDomain --test-domain scene1[/]"
)
KINDS = ("algorithm", "network", "dataset")


def template(
    kind: Annotated[str, typer.Argument(help="algorithm, network or dataset.", autocompletion=complete.among(*KINDS))],
) -> None:
    """Print a file that adds an algorithm, network or dataset of your own; it runs as it is."""
    if kind not in KINDS:
        raise unknown("template", kind, KINDS)
    console.file.write(resources.files("domainwise.cli.templates").joinpath(f"{kind}.py").read_text(encoding="utf-8"))
