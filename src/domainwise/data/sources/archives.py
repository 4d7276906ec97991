"""Archives from the internet: unpacked whole or not at all, inside their folder, plain files only."""

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
    """One file in an archive; a folder has no data."""

    name: str
    data: IO[bytes] | None


def extract(archive: Path, target: Path, *, most_bytes: int = MOST_BYTES, most_entries: int = MOST_ENTRIES) -> None:
    """Unpacks a .zip or .tar(.gz, .bz2, .xz) as the folder `target`, which appears only when it is complete.

    An archive that is one folder becomes the target itself. Refused: a name that leads outside, a link, a device, two
    entries of one name, more data or entries than the limits (counted as they come: headers may lie).
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is in the way of unpacking {archive}: remove it, or move it elsewhere")
    temporary = temporary_beside(target)
    try:
        temporary.mkdir(parents=True)
        room = most_bytes
        for number, entry in enumerate(_entries(archive)):
            if number == most_entries:
                raise UserError(f"{archive} holds more than {most_entries:,} entries: not unpacked")
            place = temporary / _inside(entry.name, archive)
            if entry.data is None:
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as file:
                while chunk := entry.data.read(CHUNK):
                    room -= len(chunk)
                    if room < 0:
                        raise UserError(f"{archive} unpacks to more than {most_bytes:,} bytes: not unpacked")
                    file.write(chunk)
        whole = _only_folder(temporary)
        if target.exists():
            target.rmdir()
        whole.replace(target)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UserError(f"{archive} holds two entries of one name ({error.filename}): not unpacked") from None
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the disk's fault, not the archive's
            raise UserError(f"cannot unpack {archive} into {target.parent}: {error.strerror}") from None
        raise _damaged(archive, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def files_of_tar(archive: Path) -> Iterator[Iterator[Entry]]:
    """The plain files of a tar, read in place."""
    try:
        with tarfile.open(archive) as opened:
            yield (Entry(member.name, opened.extractfile(member)) for member in _members(opened) if member.isfile())
    except (*DAMAGE, OSError) as error:
        raise _damaged(archive, error) from None


def _damaged(archive: Path, error: Exception) -> UserError:
    reason = str(error).partition(":")[0].strip() or type(error).__name__
    return UserError(f"{archive} is damaged or not an archive ({reason}): fetch it again")


def _entries(archive: Path) -> Iterator[Entry]:
    if zipfile.is_zipfile(archive):
        yield from _zip_entries(archive)
    else:
        yield from _tar_entries(archive)


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
    """Its members, then the rest of the file, where a compressed stream keeps its own checksum."""
    yield from opened
    while opened.fileobj is not None and opened.fileobj.read(CHUNK):
        pass


def _inside(name: str, archive: Path) -> PurePosixPath:
    """The entry's path below the target, whichever slashes it is written with."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in (path.parts or ("",))[0] or "\0" in name:
        raise UserError(f"{archive}: {name!r} leads outside the folder it is unpacked in: not unpacked")
    return path


def _only_folder(folder: Path) -> Path:
    """The folder itself, or the one folder that is all it holds."""
    content = list(folder.iterdir())
    return content[0] if len(content) == 1 and content[0].is_dir() else folder
