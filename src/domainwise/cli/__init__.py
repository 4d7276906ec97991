"""The command line: `domainwise COMMAND`. A user's mistake is one line on standard error and exit status 2."""

import errno
import logging
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from domainwise.cli import (
    audit,
    bench,
    cam,
    check,
    compare,
    data,
    demo,
    doctor,
    drift,
    export,
    figure,
    listing,
    perturbations,
    predict,
    publish,
    report,
    reproduce,
    shift,
    status,
    sweep,
    table,
    template,
    theory,
    train,
    weights,
)
from domainwise.cli.output import console, errors_console
from domainwise.cli.progress import decoding_progress
from domainwise.core import logs, plugins, torchrun
from domainwise.core.errors import STORAGE, StorageError, UserError
from domainwise.core.printing import printable, replace_unprintable
from domainwise.data.images import progress as image_progress
from domainwise.engine.interrupt import signals_as_keyboard_interrupt

log = logging.getLogger(__name__)
app = typer.Typer(
    name="domainwise",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FLAGS, VALUED = ("--verbose", "-v"), ("--plugin", "--log-file")
"""The global options, without a value and with one."""


@app.callback()
def global_options(
    context: typer.Context,
    plugin: Annotated[
        list[Path] | None, typer.Option(help="Python file with your own algorithms, networks or datasets.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more of what is going on.")] = False,
    log_file: Annotated[Path | None, typer.Option(help="Append everything that is going on to this file.")] = None,
) -> None:
    """Train and judge models that must work on domains they have never seen."""
    logs.set_options(verbose, log_file)
    image_progress.show = decoding_progress
    log.debug("domainwise %s", shlex.join(context.obj or ()))
    if torchrun.local_rank():  # the first process of the machine speaks for all
        logs.configure(quiet=True)
        console.quiet = errors_console.quiet = True
    if torchrun.world_size() > 1 and context.invoked_subcommand != "train":
        raise UserError(f"torchrun is for domainwise train; start domainwise {context.invoked_subcommand} without it")
    plugins.add(plugin or [])


app.command(epilog=demo.EXAMPLES)(demo.demo)
app.command(epilog=train.EXAMPLES)(train.train)
app.command(epilog=compare.EXAMPLES)(compare.compare)
app.command(epilog=predict.EXAMPLES)(predict.predict)
app.command(epilog=predict.EVALUATE_EXAMPLES)(predict.evaluate)
app.command(epilog=drift.EXAMPLES)(drift.drift)
app.command(epilog=export.EXAMPLES)(export.export)
app.command(epilog=sweep.EXAMPLES)(sweep.sweep)
app.command(epilog=bench.EXAMPLES)(bench.bench)
app.command(epilog=reproduce.EXAMPLES)(reproduce.reproduce)
app.command(epilog=status.EXAMPLES)(status.status)
app.command(epilog=table.EXAMPLES)(table.table)
app.command(epilog=report.EXAMPLES)(report.report)
app.command(epilog=figure.EXAMPLES)(figure.figure)
app.command(epilog=publish.EXAMPLES)(publish.publish)
app.command(epilog=publish.UNPACK_EXAMPLES)(publish.unpack)
app.command("export-domainbed", epilog=table.EXPORT_EXAMPLES)(table.export)
app.command(epilog=cam.EXAMPLES)(cam.cam)
app.command(epilog=perturbations.EXAMPLES)(perturbations.perturbations)
app.command(epilog=audit.EXAMPLES)(audit.audit)
app.command(epilog=shift.EXAMPLES)(shift.shift)
app.command(epilog=theory.EXAMPLES)(theory.theory)
app.command(epilog=template.EXAMPLES)(template.template)
app.command(epilog=doctor.EXAMPLES)(doctor.doctor)
app.command("list", epilog=listing.EXAMPLES)(listing.list_everything)
data.app.command(epilog=check.EXAMPLES)(check.check)
app.add_typer(data.app, name="data")
app.add_typer(weights.app, name="weights")


def global_options_first(arguments: Sequence[str]) -> list[str]:
    """The arguments with the global options moved to the front, so that users may put them anywhere."""
    front: list[str] = []
    rest = list(arguments)
    at = 0
    while at < len(rest) and rest[at] != "--":
        name, equals, _ = rest[at].partition("=")
        takes = 1 if name in VALUED and not equals else 0
        if name in VALUED or rest[at] in FLAGS:
            front += rest[at : at + 1 + takes]
            del rest[at : at + 1 + takes]
        else:
            at += 1
    return front + rest


def main(arguments: Sequence[str] | None = None) -> None:
    replace_unprintable()
    reordered = global_options_first(sys.argv[1:] if arguments is None else arguments)
    try:
        with signals_as_keyboard_interrupt():
            app(reordered, prog_name="domainwise", obj=reordered)
    except UserError as error:
        log.debug("error: %s", error)
        _print_error(f"{error} (--{error.argument.replace('_', '-')})" if error.argument else str(error))
        sys.exit(torchrun.exit_status(1 if isinstance(error, StorageError) else 2))
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            _print_error(f"{error.filename} is no name of a file or folder: it is too long")
            sys.exit(torchrun.exit_status(2))
        if error.errno not in STORAGE:
            raise
        _print_error(str(StorageError.of(error)))
        sys.exit(torchrun.exit_status(1))


def _print_error(message: str) -> None:
    message = re.sub(r"\S{300,}", lambda word: f"{word[0][:60]}... ({len(word[0]):,} characters)", message)
    errors_console.print(f"[bold red]error:[/] {escape(printable(message))}", soft_wrap=True, highlight=False)
