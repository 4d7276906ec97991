"""Unpack archives safely: completely or not at all, only plain files, nothing outside the target folder."""

import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from domainwise.core.errors import UserError
from domainwise.core.files import temporary_beside

MOST_BYTES = 64 * 2**30
MOST_ENTRIES = 1_000_000
CHUNK = 1 << 20

DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError)


class Entry(NamedTuple):
    """A file in an archive, or a folder, which has no data."""

    name: str
    data: IO[bytes] | None


def extract(archive: Path, target: Path, *, most_bytes: int = MOST_BYTES, most_entries: int = MOST_ENTRIES) -> None:
    """Unpacks a .zip or .tar(.gz, .bz2, .xz) to the folder `target`, which appears only when it is complete.

    If the archive holds a single folder, that folder becomes the target. A UserError refuses paths outside the target,
    links, devices, two entries of one name, and more data or entries than the limits, counted while unpacking.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is in the way of unpacking {archive}: remove it, or move it elsewhere")
    temporary = temporary_beside(target)
    try:
        temporary.mkdir(parents=True)
        bytes_left = most_bytes
        entries = _zip_entries(archive) if zipfile.is_zipfile(archive) else _tar_entries(archive)
        for number, entry in enumerate(entries):
            if number == most_entries:
                raise UserError(f"{archive} holds more than {most_entries:,} entries: not unpacked")
            path = temporary / _safe_path(entry.name, archive)
            if entry.data is None:
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                while chunk := entry.data.read(CHUNK):
                    bytes_left -= len(chunk)
                    if bytes_left < 0:
                        raise UserError(f"{archive} unpacks to more than {most_bytes:,} bytes: not unpacked")
                    file.write(chunk)
        if target.exists():
            target.rmdir()
        _only_folder(temporary).replace(target)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UserError(f"{archive} holds two entries of one name ({error.filename}): not unpacked") from None
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # of the disk, not of the archive
            raise UserError(f"cannot unpack {archive} into {target.parent}: {error.strerror}") from None
        raise _damaged(archive, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def files_of_tar(archive: Path) -> Iterator[Iterator[Entry]]:
    """The plain files of a tar, without unpacking it."""
    try:
        with tarfile.open(archive) as opened:
            yield (Entry(member.name, opened.extractfile(member)) for member in _members(opened) if member.isfile())
    except (*DAMAGE, OSError) as error:
        raise _damaged(archive, error) from None


def _damaged(archive: Path, error: Exception) -> UserError:
    reason = str(error).partition(":")[0].strip() or type(error).__name__
    return UserError(f"{archive} is damaged or not an archive ({reason}): fetch it again")


def _zip_entries(archive: Path) -> Iterator[Entry]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise UserError(f"{archive}: {info.filename!r} is a link or a device: not unpacked")
            if info.flag_bits & 1:
                raise UserError(f"{archive}: {info.filename!r} needs a password: unpack it yourself")
            if info.is_dir():
                yield Entry(info.filename, None)
            else:
                with opened.open(info) as data:
                    yield Entry(info.filename, data)


def _tar_entries(archive: Path) -> Iterator[Entry]:
    with tarfile.open(archive) as opened:
        for member in _members(opened):
            if not (member.isfile() or member.isdir()):
                raise UserError(f"{archive}: {member.name!r} is a link or a device: not unpacked")
            yield Entry(member.name, opened.extractfile(member))


def _members(opened: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members; then reads to the end of the file, where a compressed stream has its checksum."""
    yield from opened
    while opened.fileobj is not None and opened.fileobj.read(CHUNK):
        pass


def _safe_path(name: str, archive: Path) -> PurePosixPath:
    """The entry's path below the target, written with slashes or backslashes; a path outside is a UserError."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in (path.parts or ("",))[0] or "\0" in name:
        raise UserError(f"{archive}: {name!r} leads outside the folder it is unpacked in: not unpacked")
    return path


def _only_folder(folder: Path) -> Path:
    """The folder itself, or its only content if that is a folder."""
    content = list(folder.iterdir())
    return content[0] if len(content) == 1 and content[0].is_dir() else folder
