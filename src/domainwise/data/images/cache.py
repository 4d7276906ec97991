"""The decode cache: image files are decoded once into a memory-mapped uint8 file that every later run uses.

A cache folder holds, per collection of files, one entry per size:

    <cache>/<label>-<collection>/<size>-<fingerprint>/images.bin     uint8 [N, 3, size, size]
                                                      record.json    number of files, which could not be decoded,
                                                                     and the checksums of images.bin

An entry <size>max-<fingerprint> has images at their own sizes, with a short side of at most `size`, one after another;
its record.json also has their heights and widths.

One process at a time builds an entry, in a temporary folder that is renamed when it is complete; other processes wait
and share it. The fingerprint depends on the files' names, sizes and times: a changed collection has a new entry, which
replaces the old one.
"""

import errno
import fcntl
import hashlib
import json
import logging
import math
import mmap
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from domainwise.core import files as atomic_files
from domainwise.core.errors import UserError
from domainwise.core.parsing import Count, Longest, check, checksum, parse, read_file
from domainwise.core.threads import cores
from domainwise.data.images import progress
from domainwise.data.images.cache_folder import SOURCE, cache_root
from domainwise.data.images.decode import LONGEST, PACKED, write_at
from domainwise.data.images.parallel import decode_all
from domainwise.data.images.remote import Location, container, is_url, shown, states

log = logging.getLogger("domainwise")

POPULATE_READ = 22
"""Linux's MADV_POPULATE_READ: fills the page table at once, instead of by a fault at the first read of every page."""
CHUNK = 1 << 24
"""Bytes that have one checksum."""
LARGEST_RECORD = 1 << 30
UNCHECKED = {"files", "bad"}
"""What record.json of an earlier version holds: no checksums."""
ADVICE = "delete its folder"
DECODING = "another process is decoding these images: waiting for it"
WORTH_A_LINE = 10_000_000
"""Bytes of a new entry from which on it is said where it lies."""
POPULATED_SHARE = 0.5
"""Maps larger than this share of the available memory are paged in as they are read."""


@dataclass(frozen=True)
class Decoded:
    """The images that could be decoded, in the order of their files, and why others could not, by file number."""

    images: Tensor  # uint8 [N, 3, size, size], memory-mapped; of original images flat, one after another
    bad: Mapping[int, str]
    sizes: Sequence[tuple[int, int]] = ()  # height and width of original images


class _Format(NamedTuple):
    """Images of size x size pixels; or the original ones, whose short side is at most `size`."""

    size: int
    original: bool

    def __str__(self) -> str:
        return f"{self.size}{'max' if self.original else ''}"

    @property
    def slot(self) -> int:
        """The largest number of bytes of an image."""
        return 3 * self.size * self.size * (LONGEST if self.original else 1)


def decode(
    files: Sequence[Location],
    size: int,
    *,
    label: str = "images",
    which: str | None = None,
    cache: Path | None = None,
    window: tuple[int, int] | None = None,
    original: bool = False,
) -> Decoded:
    """Decodes image files, unless the cache has them; leaves out, but names, those that cannot be decoded.

    `which` identifies the collection: an entry replaces older ones of the same collection. By default it is the list of
    files. `window`: see `images.decode.read`. `original` images keep their size (see `images.decode.read_original`).
    """
    form = _Format(size, original)
    base = common_folder(files)
    which = which or "\n".join(map(str, files))
    plain = re.sub(r"[^\w.-]+", "-", label, flags=re.ASCII).strip("-.")[:40] or "images"
    collection = (cache or cache_root()) / f"{plain}-{_digest(which)[:12]}"
    state = fingerprint(files, base)
    entry = collection / f"{form}-{state if window is None else _digest(f'{state} {window}')[:16]}"
    result = _open(entry, form, len(files))
    if result is None:
        _check_writable(collection)
        with locked(collection):
            result = _open(entry, form, len(files))  # another process may have built it meanwhile
            if result is None:
                atomic_files.write(collection / SOURCE, os.fsencode(base))
                _build(entry, files, form, label, window)
                result = _open(entry, form, len(files))
    if result is None:
        raise UserError(f"the cache entry {entry} vanished as it was made: is another program cleaning that folder?")
    with suppress(OSError):
        os.utime(entry)  # when it was last used
    return result


def bad_images(files: Sequence[Location], bad: Mapping[int, str]) -> UserError:
    """The error that names the first file that cannot be decoded, and what to do about all of them."""
    number, reason = next(iter(bad.items()))
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return UserError(
        f"cannot decode {shown(files[number])}: {reason}{more}; repair or remove it, or leave such images out",
        argument="skip_bad",
    )


def common_folder(files: Sequence[Location]) -> Path:
    """The deepest folder that holds all files of this machine."""
    folders = {place.parent for file in files if (place := file if isinstance(file, Path) else container(file))}
    return Path(os.path.commonpath(folders or [Path("/")]))


def fingerprint(files: Sequence[Location], base: Path) -> str:
    """A digest of the files' names below `base`, sizes and times."""
    lines = []
    elsewhere = states([str(file) for file in files if is_url(file)])
    for file in files:
        if not isinstance(file, Path):
            lines.append(f"{file.removeprefix(f'{PACKED}{base}')}\0{elsewhere.get(file)}")
            continue
        facts = file.stat()
        lines.append(f"{str(file).removeprefix(str(base))}\0{facts.st_size}\0{facts.st_mtime_ns}")
    return _digest("\n".join(lines))[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _check_writable(folder: Path) -> None:
    try:
        atomic_files.writable_folder(folder)
    except UserError:
        raise UserError(f"cannot write the decode cache to {folder}: set DOMAINWISE_CACHE to another folder") from None


@contextmanager
def locked(collection: Path, waiting: str = DECODING) -> Iterator[None]:
    """Waits until no other process builds in this folder, and keeps others out.

    On a file system without locks several may build, each in its own temporary folder; the first to finish wins.
    """
    with (collection / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield
            return
        for leftover in collection.glob(".*.tmp"):  # of a build that was killed, since none is going on
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def _build(entry: Path, files: Sequence[Location], form: _Format, label: str, window: tuple[int, int] | None) -> None:
    temporary = atomic_files.temporary_beside(entry)
    temporary.mkdir()
    try:
        out = temporary / "images.bin"
        _reserve(out, len(files) * form.slot, whole=not form.original)
        bad, sizes = {}, []
        job = {**form._asdict(), "out": str(out), "slot": form.slot} | ({} if window is None else {"window": window})
        at_size = "at original size" if form.original else f"to {form.size} pixels"
        for number, answer in decode_all(files, f"decoding {label} {at_size}, once", **job):
            if "unwritten" in answer:
                raise _unwritable(entry, answer["unwritten"])
            if "bad" in answer:
                bad[number] = answer["bad"]
            sizes.append(answer.get("size", (0, 0)))
        try:
            total = _close_gaps(out, form.slot, [3 * height * width for height, width in sizes])
        except OSError as error:
            raise _unwritable(entry, str(error.strerror)) from None
        with out.open("rb") as written:
            crc = _checksums(_mapped(written.fileno(), total))
        record: dict[str, Any] = {"files": len(files), "bad": {str(n): reason for n, reason in bad.items()}, "crc": crc}
        if form.original:
            record["sizes"] = [size for number, size in enumerate(sizes) if number not in bad]
        atomic_files.write(temporary / "record.json", json.dumps(record | {"checksum": checksum(record)}))
        state = entry.name.partition("-")[2]
        for old in entry.parent.glob("[0-9]*-*"):  # outdated or damaged
            if old == entry or not old.name.endswith(state):
                shutil.rmtree(old, ignore_errors=True)
        with suppress(OSError):  # without locks, another process may have been faster
            temporary.rename(entry)
        if total >= WORTH_A_LINE:
            progress.announce(
                f"decoded images of {label}, {total / 1e6:,.0f} MB, are kept for later runs in {entry.parent}"
            )
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unwritable(entry: Path, reason: str) -> UserError:
    return UserError(f"cannot write the decode cache to {entry.parent}: {reason}")


def _reserve(out: Path, length: int, *, whole: bool) -> None:
    """Makes a file of this length; if the whole of it will be written, allocates its disk space where it can."""
    with out.open("wb") as file:
        file.truncate(length)
        if not whole:
            return
        try:
            os.posix_fallocate(file.fileno(), 0, length)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise UserError(
                    f"no room for {length / 2**30:.1f} GiB of decoded images in {out.parent.parent}: set "
                    "DOMAINWISE_CACHE to a folder with more, or use a smaller image size",
                    argument="image_size",
                ) from None


def _close_gaps(out: Path, slot: int, lengths: Sequence[int]) -> int:
    """Moves so many bytes from the start of every slot to the end of the last ones; flushes the file to the disk.

    Returns the length of the file, which is the sum of all.
    """
    with out.open("r+b") as file:
        end = 0
        for number, length in enumerate(lengths):
            if length and end < number * slot:
                write_at(file.fileno(), os.pread(file.fileno(), length, number * slot), end)
            end += length
        file.truncate(end)
        os.fsync(file.fileno())
    return end


@dataclass(frozen=True)
class _Record:
    """The content of record.json."""

    files: Count
    bad: dict[str, Annotated[str, Longest(100_000)]]
    crc: tuple[Count, ...] = ()
    sizes: tuple[tuple[Count, Count], ...] = ()


def _open(entry: Path, form: _Format, count: int) -> Decoded | None:
    """The entry's images, memory-mapped and checked; None if it is missing, and, with a warning, if it is damaged."""
    path = entry / "record.json"
    try:
        values = parse(read_file(path, ADVICE, LARGEST_RECORD), dict[str, Any], path, ADVICE)
        if values.keys() != UNCHECKED and values.pop("checksum", None) != checksum(values):
            raise UserError(f"{path} is damaged (its checksum does not fit)")
        record = check(values, _Record, path, ADVICE)
        shape = (record.files - len(record.bad), 3, form.size, form.size)
        length = sum(3 * height * width for height, width in record.sizes) if form.original else math.prod(shape)
        with (entry / "images.bin").open("rb") as file:
            if record.files != count or os.fstat(file.fileno()).st_size != length:
                raise UserError(f"{entry} is incomplete")
            images = _mapped(file.fileno(), length)
        if values.keys() != UNCHECKED and _checksums(images) != list(record.crc):
            raise UserError(f"{entry / 'images.bin'} is damaged (its checksum does not fit)")
    except FileNotFoundError:
        return None
    except (UserError, OSError) as error:
        log.warning("%s: the images are decoded again", error)
        return None
    bad = {int(number): reason for number, reason in record.bad.items()}
    return Decoded(images if form.original else images.view(shape), bad, record.sizes)


def _checksums(images: Tensor) -> list[int]:
    """The CRC-32 of every CHUNK of the images, several at once."""
    data = images.numpy().data
    parts = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
    with ThreadPoolExecutor(max_workers=cores()) as pool:
        return list(pool.map(zlib.crc32, parts))


def _mapped(descriptor: int, length: int) -> Tensor:
    """The file as a tensor whose memory processes share; private, so that writing would change this process's only."""
    if not length:
        return torch.empty(0, dtype=torch.uint8)
    pages = mmap.mmap(descriptor, length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    if length < POPULATED_SHARE * available_memory():
        with suppress(OSError):
            pages.madvise(POPULATE_READ)
    return torch.frombuffer(pages, dtype=torch.uint8)


def available_memory() -> int:
    """Bytes of memory available without swapping; 0 where unknown."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
