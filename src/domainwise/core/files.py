"""Reading and writing files: whole or absent whatever happens while they are written, and never waited for."""

import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import IO

from domainwise.core.errors import STORAGE, StorageError, UserError

TAIL = 1 << 16
"""Longer than any line."""
LINKS = 40
"""More links that lead to each other are a circle."""
READY = ".replacement"
"""The folder of files that are about to replace those beside it, all together."""
DESCRIPTOR = re.compile(r"/(?:proc/(?:self|\d+)|dev)/fd/(\d+)")
NONBLOCKING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class Unreadable(UserError):
    """Something that is there and cannot be read."""

    def __init__(self, path: Path | str, reason: str | None, advice: str = "mend or remove it") -> None:
        super().__init__(f"{path} cannot be read ({reason}): {advice}")
        self.brief = f"{Path(path).name} cannot be read ({reason})"
        """Where the folder is named already."""


def read(
    path: Path | str, tail: int | None = None, *, limit: int | None = None, advice: str = "mend or remove it"
) -> bytes:
    """The whole file, or the `tail` bytes at its end. Never waits.

    FileNotFoundError if there is none; Unreadable if there is something else, it cannot be read, or it has more than
    `limit` bytes.
    """
    try:
        facts = os.stat(path)  # noqa: PTH116 (thousands of files: no Path for each)
        if not stat.S_ISREG(facts.st_mode):  # a FIFO that was opened could wait for ever
            raise Unreadable(path, "not a regular file", advice)
        if limit is not None and facts.st_size > limit:
            raise Unreadable(path, f"larger than {limit >> 20:,} MiB", advice)
        descriptor = os.open(path, os.O_RDONLY | NONBLOCKING)
        try:
            if tail is not None and facts.st_size > tail:
                os.lseek(descriptor, -tail, os.SEEK_END)
            data = os.read(descriptor, facts.st_size + 1)
            while more := os.read(descriptor, 1 << 20):  # it grows, or is larger than one call reads
                data += more
            return data
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):  # noqa: PTH114
            raise Unreadable(path, "a link to nothing", advice) from None
        raise FileNotFoundError(path) from None
    except OSError as error:
        raise Unreadable(path, error.strerror, advice) from None


def resolved(path: Path | str) -> Path:
    """The absolute path without links and ~; a circle of links, or a ~ of nobody, stays as it is."""
    return Path(os.path.realpath(os.path.expanduser(path)))  # noqa: PTH111 (Path's own methods raise RuntimeError)


def expanded(path: Path | str) -> Path:
    """The path with ~ replaced by a home folder, if there is one."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def temporary_beside(path: Path) -> Path:
    """A hidden name that nobody else has, not even a process of the same number on a machine that shares the folder."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


@contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file that is flushed to the disk and renamed into place if all goes well.

    A link stays, and the file it leads to is replaced; a file keeps its mode and owner; a device or pipe is written to.
    """
    target = _behind_links(path)
    before = _stat(path)
    if isinstance(target, int) or (before is not None and not stat.S_ISREG(before.st_mode)):
        whole = BytesIO()
        yield whole
        _write_through(target, whole.getvalue())
        return
    temporary = temporary_beside(target)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            if before is not None:
                _like(file.fileno(), before)
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _behind_links(path: Path) -> Path | int:
    """The file that a path leads to, or the number of the open file that it stands for, as /dev/stdout does."""
    for _ in range(LINKS):
        if is_descriptor := DESCRIPTOR.fullmatch(str(path)):
            return int(is_descriptor[1])
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    return path


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write_through(target: Path | int, data: bytes) -> None:
    if isinstance(target, int):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        target = os.dup(target)
    with open(target, "wb") as file:  # noqa: PTH123 (it may be the number of an open file)
        file.write(data)


def _like(descriptor: int, before: os.stat_result) -> None:
    """Mode and owner of the file that is replaced; the owner only where the system allows it."""
    if not hasattr(os, "fchmod"):
        return
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def write(path: Path, data: bytes | str) -> None:
    """Writes the whole file or nothing; text as UTF-8, names of files that are not UTF-8 as they are on the disk."""
    with atomic(path) as file:
        file.write(data.encode(errors="surrogateescape") if isinstance(data, str) else data)


@contextmanager
def replaced_together(folder: Path) -> Iterator[Path]:
    """Yields an empty folder; its files and folders then replace those of the same names in `folder`, all or none."""
    complete_replacement(folder)
    for leftover in folder.glob(f"{READY}.*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    staged = folder / f"{READY}.{secrets.token_hex(4)}.tmp"
    staged.mkdir()
    try:
        yield staged
        staged.rename(folder / READY)  # from here on the new ones count
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    complete_replacement(folder)


def complete_replacement(folder: Path) -> None:
    """Finishes a replacement that was interrupted after all its files had been written."""
    ready = folder / READY
    try:
        entries = sorted(ready.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        for entry in entries:
            target = folder / entry.name
            if entry.name.endswith(".old"):
                continue
            if entry.is_dir() and target.is_dir():
                target.rename(ready / f"{entry.name}.{secrets.token_hex(4)}.old")
            with suppress(FileNotFoundError):  # another process completes it too
                entry.replace(target)
        shutil.rmtree(ready, ignore_errors=True)
    except OSError as error:
        reason = f"{folder}: files there were being replaced when a command was stopped, and it cannot be finished"
        raise UserError(f"{reason} ({error.strerror}): run this command once as a user who may write there") from None


def last_line(path: Path) -> bytes:
    """The last whole line of a file."""
    lines = read(path, TAIL).split(b"\n")
    return lines[-2] if len(lines) > 1 else b""


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
    try:
        target = _behind_links(path)
        if isinstance(target, int):
            return path
        before = _stat(path)
        if before is not None and stat.S_ISDIR(before.st_mode):
            raise UserError(f"{path} is a folder: name a file", argument=argument)
        if before is not None and not stat.S_ISREG(before.st_mode):
            if not os.access(path, os.W_OK):
                raise PermissionError(0, "Permission denied")
            return path
    except OSError as error:
        raise _unwritable(path, error, argument) from None
    writable_folder(target.parent, argument)
    try:
        _try(target)
    except OSError as error:
        raise _unwritable(path, error, argument) from None
    return path


def _unwritable(path: Path, error: OSError, argument: str) -> UserError:
    return UserError(f"cannot write {path} ({error.strerror}): choose another file", argument=argument)


def _try(path: Path) -> None:
    """Whether a file can be written there, in the way of `atomic`."""
    probe = temporary_beside(path)
    probe.touch()
    probe.unlink()


def fingerprint(path: Path) -> str:
    """The first 16 digits of the file's SHA-256; recomputed only if its size or time has changed."""
    facts = path.stat()
    return _fingerprint(path.absolute(), facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=64)
def _fingerprint(path: Path, _size: int, _time: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
