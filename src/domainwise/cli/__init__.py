"""The command line: `domainwise COMMAND`. A user's mistake is one line on standard error and exit status 2."""

import errno
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from domainwise.cli import (
    audit,
    bench,
    cache,
    calibrate,
    cam,
    check,
    compare,
    data,
    demo,
    dfr,
    doctor,
    drift,
    export,
    features,
    figure,
    interpolate,
    listing,
    perturbations,
    predict,
    publish,
    report,
    reproduce,
    serve,
    shift,
    soup,
    status,
    sweep,
    table,
    template,
    theory,
    train,
    version,
    weights,
)
from domainwise.cli.output import console, errors_console, say
from domainwise.cli.progress import decoding_progress
from domainwise.core import files, logs, plugins, torchrun
from domainwise.core.errors import STORAGE, StorageError, UserError
from domainwise.core.printing import printable, replace_unprintable
from domainwise.data.images import progress as image_progress
from domainwise.data.images.cache_folder import VARIABLE as CACHE
from domainwise.engine.interrupt import signals_as_keyboard_interrupt

log = logging.getLogger(__name__)
app = typer.Typer(
    name="domainwise",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FLAGS, VALUED = ("--verbose", "-v"), ("--plugin", "--log-file", "--cache")
"""The global options, without a value and with one."""
BAD_PATH = errno.ENAMETOOLONG, errno.ELOOP


@app.callback()
def global_options(
    context: typer.Context,
    plugin: Annotated[
        list[Path] | None, typer.Option(help="Python file with your own algorithms, networks or datasets.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print more details.")] = False,
    log_file: Annotated[Path | None, typer.Option(help="Append all log messages to this file.")] = None,
    cache_folder: Annotated[
        Path | None, typer.Option("--cache", help="Folder of decoded images (default: $DOMAINWISE_CACHE).")
    ] = None,
    version: Annotated[  # noqa: ARG001 (its callback prints it)
        bool, typer.Option("--version", callback=version.show, is_eager=True, help="Show versions and exit.")
    ] = False,
) -> None:
    """Train and evaluate models that must work on unseen domains."""
    logs.set_options(verbose, log_file)
    image_progress.show = decoding_progress
    image_progress.announce = lambda line: say(f"{line} (see: domainwise data cache list)", errors_console)
    if cache_folder is not None:
        os.environ[CACHE] = str(files.expanded(cache_folder).absolute())  # worker processes inherit it
    log.debug("domainwise %s", shlex.join(context.obj or ()))
    if torchrun.local_rank():  # the first process of the machine speaks for all
        logs.configure(quiet=True)
        console.quiet = errors_console.quiet = True
    if torchrun.world_size() > 1 and context.invoked_subcommand != "train":
        raise UserError(f"torchrun is for domainwise train; start domainwise {context.invoked_subcommand} without it")
    plugins.add(plugin or [])


PANELS: dict[str, tuple[tuple[Callable[..., Any], str], ...]] = {
    "Get started": (
        (demo.demo, demo.EXAMPLES),
        (doctor.doctor, doctor.EXAMPLES),
        (listing.list_everything, listing.EXAMPLES),
    ),
    "Train and compare": ((train.train, train.EXAMPLES), (compare.compare, compare.EXAMPLES)),
    "Use a model": (
        (predict.predict, predict.EXAMPLES),
        (predict.evaluate, predict.EVALUATE_EXAMPLES),
        (drift.drift, drift.EXAMPLES),
        (serve.serve, serve.EXAMPLES),
        (export.export, export.EXAMPLES),
        (soup.soup, soup.EXAMPLES),
        (soup.ensemble, soup.ENSEMBLE_EXAMPLES),
        (interpolate.interpolate, interpolate.EXAMPLES),
        (dfr.dfr, dfr.EXAMPLES),
        (calibrate.calibrate, calibrate.EXAMPLES),
    ),
    "Run a study": (
        (sweep.sweep, sweep.EXAMPLES),
        (reproduce.reproduce, reproduce.EXAMPLES),
        (status.status, status.EXAMPLES),
        (publish.publish, publish.EXAMPLES),
        (publish.unpack, publish.UNPACK_EXAMPLES),
        (table.export, table.EXPORT_EXAMPLES),
    ),
    "See and explain": (
        (table.table, table.EXAMPLES),
        (report.report, report.EXAMPLES),
        (figure.figure, figure.EXAMPLES),
        (cam.cam, cam.EXAMPLES),
        (perturbations.perturbations, perturbations.EXAMPLES),
        (audit.audit, audit.EXAMPLES),
        (shift.shift, shift.EXAMPLES),
        (theory.theory, theory.EXAMPLES),
    ),
    "Extend and measure": ((template.template, template.EXAMPLES), (bench.bench, bench.EXAMPLES)),
}
"""The commands and their examples by what people do, as --help shows them."""
NAMES: dict[Callable[..., Any], str] = {listing.list_everything: "list", table.export: "export-domainbed"}
"""Names of commands that are not their function's."""
DATA_PANEL = "Data and weights"

for panel, commands in PANELS.items():
    for function, examples in commands:
        app.command(NAMES.get(function), epilog=examples, rich_help_panel=panel)(function)
data.app.command(epilog=check.EXAMPLES)(check.check)
data.app.add_typer(cache.app, name="cache")
app.add_typer(data.app, name="data", rich_help_panel=DATA_PANEL)
app.add_typer(weights.app, name="weights", rich_help_panel=DATA_PANEL)
app.command(epilog=features.EXAMPLES, rich_help_panel=DATA_PANEL)(features.features)


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


USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""What is raised for options and arguments that cannot be; typer gives it no public name."""


def main(arguments: Sequence[str] | None = None) -> None:
    replace_unprintable()
    reordered = global_options_first(sys.argv[1:] if arguments is None else arguments)
    try:
        with signals_as_keyboard_interrupt():
            status = app(reordered, prog_name="domainwise", obj=reordered, standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except USAGE_ERROR as error:
        if message := _usage(error):  # empty where the help was shown
            _print_error(message)
        sys.exit(torchrun.exit_status(2))
    except typer.Abort:
        sys.exit(torchrun.exit_status(1))
    except KeyboardInterrupt:
        sys.exit(torchrun.exit_status(130))
    except UserError as error:
        log.debug("error: %s", error)
        _print_error(f"{error} (--{error.argument.replace('_', '-')})" if error.argument else str(error))
        sys.exit(torchrun.exit_status(1 if isinstance(error, StorageError) else 2))
    except OSError as error:
        if error.errno in BAD_PATH:
            _print_error(f"{os.strerror(error.errno)}: {error.filename}: give another path")
            sys.exit(torchrun.exit_status(2))
        if error.errno not in STORAGE:
            raise
        _print_error(str(StorageError.of(error)))
        sys.exit(torchrun.exit_status(1))


def _usage(error: Any) -> str:
    """What is wrong with the arguments, and where their help is."""
    message = " ".join(error.format_message().split()).rstrip(".")
    where = f"; see {error.ctx.command_path} --help" if error.ctx is not None else ""
    return f"{message[:1].lower()}{message[1:]}{where}" if message else ""


def _print_error(message: str) -> None:
    message = re.sub(r"\S{300,}", lambda word: f"{word[0][:60]}... ({len(word[0]):,} characters)", message)
    errors_console.print(f"[bold red]error:[/] {escape(printable(message))}", soft_wrap=True, highlight=False)
