"""Files that are whole or absent, whatever happens while they are written."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from domainwise.core.errors import STORAGE, StorageError, UserError

TAIL = 1 << 16
"""Longer than any line."""


def temporary_beside(path: Path) -> Path:
    """A hidden name that nobody else has, not even a process of the same number on a machine that shares the folder."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


@contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file beside the target that is flushed to the disk and renamed into place if all goes well."""
    temporary = temporary_beside(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write(path: Path, data: bytes | str) -> None:
    """Writes the whole file or nothing; text as UTF-8."""
    with atomic(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def last_line(path: Path) -> bytes:
    """The last whole line of a file."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(-min(size, TAIL), os.SEEK_END)
        lines = file.read().split(b"\n")
    return lines[-2] if len(lines) > 1 else b""


def append_lines(path: Path, data: bytes) -> None:
    """Appends whole lines and flushes to the disk; a last line that a crash cut short is removed first."""
    with path.open("ab+") as file:
        size = file.tell()
        if size:
            file.seek(-min(size, TAIL), os.SEEK_END)
            tail = file.read()
            file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def writable_folder(path: Path, argument: str = "out") -> Path:
    """Makes the folder if need be; one that cannot be written to is a UserError, raised before any work is done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        _try(path / ".probe")
    except OSError as error:
        if error.errno in STORAGE:
            raise StorageError.of(error, path) from None
        reason = f"cannot write to {path} ({error.strerror}): choose another folder"
        raise UserError(reason, argument=argument) from None
    return path


def check_space(folder: Path) -> None:
    """Raises StorageError if the folder's disk does not take a small file."""
    probe = temporary_beside(folder / ".space")
    try:
        with probe.open("wb") as file:
            file.write(bytes(TAIL))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno in STORAGE:
            raise StorageError.of(error, folder) from None
        raise
    finally:
        probe.unlink(missing_ok=True)


def writable_file(path: Path, argument: str = "out") -> Path:
    """Makes the file's folder if need be; a path that cannot be written to is a UserError, as with a folder."""
    writable_folder(path.parent, argument)
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder: name a file", argument=argument)
        _try(path)
    except OSError as error:
        reason = f"cannot write {path} ({error.strerror}): choose another file"
        raise UserError(reason, argument=argument) from None
    return path


def _try(path: Path) -> None:
    """Whether a file can be written there, in the way of `atomic`."""
    probe = temporary_beside(path)
    probe.touch()
    probe.unlink()
