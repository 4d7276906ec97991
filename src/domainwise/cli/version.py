"""`domainwise --version`."""

import platform

import typer

from domainwise import __version__
from domainwise.cli.output import say
from domainwise.core.provenance import package_version


def show(wanted: bool) -> None:
    """Prints the versions of this package, torch and Python, and ends; torch is not imported for it."""
    if wanted:
        say(f"domainwise {__version__} (torch {package_version('torch')}, Python {platform.python_version()})")
        raise typer.Exit
