"""What the program says of its work besides its results: warnings always, more with --verbose, all of it in a log file.

The choice is kept in the environment, so that worker processes make the same one.
"""

import logging
import os
import sys
from pathlib import Path

from domainwise.core.errors import UserError

FILE, VERBOSE = "DOMAINWISE_LOG", "DOMAINWISE_VERBOSE"


def choose(verbose: bool, file: Path | None) -> None:
    """Takes a user's choice, for this process and those it starts."""
    if verbose:
        os.environ[VERBOSE] = "1"
    if file is not None:
        os.environ[FILE] = str(file.expanduser().absolute())
    configure()


def configure(quiet: bool = False) -> None:
    """Makes the package's loggers do what was chosen; quiet processes show errors only. May be called again."""
    logger = logging.getLogger("domainwise")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    screen = logging.StreamHandler(sys.stderr)
    loud = logging.INFO if os.environ.get(VERBOSE) else logging.WARNING
    screen.setLevel(logging.ERROR if quiet else loud)
    screen.setFormatter(logging.Formatter("note: %(message)s"))
    logger.addHandler(screen)
    if path := os.environ.get(FILE):
        try:
            file = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UserError(f"--log-file {path}: cannot be written to ({error.strerror})") from None
        file.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(file)
