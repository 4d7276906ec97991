"""Logging: warnings on standard error, information too if verbose, everything in a log file if there is one.

Both options live in environment variables, which worker processes inherit.
"""

import logging
import os
import sys
from pathlib import Path

from domainwise.core.errors import UserError
from domainwise.core.printing import printable

FILE, VERBOSE = "DOMAINWISE_LOG", "DOMAINWISE_VERBOSE"


def set_options(verbose: bool, file: Path | None) -> None:
    """Sets the options for this process and those it starts."""
    if verbose:
        os.environ[VERBOSE] = "1"
    if file is not None:
        os.environ[FILE] = str(file.expanduser().absolute())
    configure()


class _OneLine(logging.Formatter):
    """Messages name files and classes, which may hold control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def configure(quiet: bool = False) -> None:
    """Applies the options to the package's loggers; quiet processes show errors only. May be called again."""
    logger = logging.getLogger("domainwise")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    screen = logging.StreamHandler(sys.stderr)
    level = logging.INFO if os.environ.get(VERBOSE) else logging.WARNING
    screen.setLevel(logging.ERROR if quiet else level)
    screen.setFormatter(_OneLine("note: %(message)s"))
    logger.addHandler(screen)
    if path := os.environ.get(FILE):
        try:
            file = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UserError(f"cannot write to the log file {path} ({error.strerror})", argument="log_file") from None
        file.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(file)
