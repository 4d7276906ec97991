"""The options that say how your own images are read: declared once, for every command that reads them.

    @with_reading_flags
    def check(folder: ..., reading: Reading, as_json: ...) -> None:

The command shows them in the place of its parameter `reading`, and gets one Reading.
"""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from domainwise.cli import options
from domainwise.cli.training_flags import Command, in_place_of
from domainwise.core.errors import UserError
from domainwise.protocol.reading import Reading


def _declaration(
    columns: Annotated[
        list[str] | None,
        typer.Option(
            help="Columns of a table by role: domain=camera,group=patient,label=species (path, split, time, weight); "
            "weight= reads none."
        ),
    ] = None,
    domain_column: Annotated[str, typer.Option(help="The same as --columns domain=NAME.")] = "",
    root: Annotated[str, typer.Option(help="Folder or URL of a table's paths (default: the table's folder).")] = "",
    window: Annotated[
        str, typer.Option(help="Grey values LOW:HIGH of 16-bit images that become black and white, e.g. 0:4095.")
    ] = "",
    bursts: Annotated[
        str, typer.Option(help="Keep images together that were taken within a gap of each other, e.g. time:30s.")
    ] = "",
) -> None:
    """A signature and nothing else: names, kinds, defaults and help of the options, in this order."""


DECLARED = inspect.signature(_declaration).parameters


def with_reading_flags(command: Command) -> Command:
    """The command with the declared options in place of its parameter `reading`."""
    return in_place_of("reading", DECLARED, reading_of, command)


def with_path_flags(command: Command) -> Command:
    """The same with those that say where a table's images are; nothing else is read of it."""
    return in_place_of("reading", {name: DECLARED[name] for name in ("columns", "root")}, reading_of, command)


def reading_of(values: Mapping[str, Any]) -> Reading:
    """What the values of the options say."""
    columns: dict[str, str] = {}
    for pair in (pair for text in values["columns"] or [] for pair in options.parse_names(text)):
        role, equals, column = pair.partition("=")
        if not (role and equals) or role in columns:
            raise UserError(f"--columns {pair!r}: write ROLE=COLUMN, each role once, e.g. --columns domain=camera")
        columns[role] = column
    if name := values.get("domain_column"):
        if "domain" in columns:
            raise UserError("give either --domain-column NAME or --columns domain=NAME, not both")
        columns["domain"] = name
    return Reading.of(columns, values["root"], values.get("window", ""), values.get("bursts", ""))
