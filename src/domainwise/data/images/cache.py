"""Decode once: image files -> one memory-mapped uint8 file, kept for every later run.

A cache folder holds, per collection of files, one entry per size:

    <cache>/<label>-<which collection>/<size>-<fingerprint>/images.bin     uint8 [N, 3, size, size]
                                                            record.json    how many images, and which files were bad

An entry is built beside its place and renamed into it when it is whole, by one process at a time; the others wait and
share it. Its fingerprint is that of the files' names, sizes and times, so a changed collection has another entry, which
replaces the old one.
"""

import errno
import fcntl
import hashlib
import json
import math
import mmap
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from domainwise.core import files as whole_files
from domainwise.core.errors import UserError
from domainwise.data.catalogue import data_root
from domainwise.data.images.parallel import spread

POPULATE_READ = 22
"""Linux's MADV_POPULATE_READ: fills the page table at once, instead of by a fault at the first touch of every page."""
POPULATED_SHARE = 0.5
"""Of the memory available: a larger map is left to be paged in as it is read."""


@dataclass(frozen=True)
class Decoded:
    """The images that could be decoded, in the order of their files, and the numbers of those that could not."""

    images: Tensor  # uint8 [N, 3, size, size], memory-mapped
    bad: Mapping[int, str]


def decoded(files: Sequence[Path], size: int, *, label: str = "images", cache: Path | None = None) -> Tensor:
    """uint8 [N, 3, size, size] of image files, memory-mapped; decoded now if that was never done before.

    A file that cannot be decoded is a UserError that names it.
    """
    found = decode(files, size, label=label, cache=cache)
    if found.bad:
        raise bad_images([(files[number], reason) for number, reason in found.bad.items()])
    return found.images


def decode(
    files: Sequence[Path], size: int, *, label: str = "images", which: str | None = None, cache: Path | None = None
) -> Decoded:
    """As `decoded`, with bad files left out and named.

    `which` names the collection whose entries replace one another when it changes; by default it is the list of files.
    """
    base = Path(os.path.commonpath([file.parent for file in files]))
    which = which or "\n".join(map(str, files))
    plain = re.sub(r"[^\w.-]+", "-", label, flags=re.ASCII).strip("-.")[:40] or "images"
    home = (cache or cache_root(outside=base)) / f"{plain}-{_digest(which)[:12]}"
    entry = home / f"{size}-{fingerprint(files, base)}"
    found = _open(entry, size, len(files))
    if found is None:
        _writable(home)
        with _alone(home):
            found = _open(entry, size, len(files))  # somebody else may have built it meanwhile
            if found is None:
                _build(entry, files, size, label)
                found = _open(entry, size, len(files))
    if found is None:
        raise UserError(f"the cache entry {entry} vanished as it was made: is another program cleaning that folder?")
    return found


def bad_images(bad: Sequence[tuple[Path, str]]) -> UserError:
    """The error that names the first bad image, and says what to do about all of them."""
    file, reason = bad[0]
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return UserError(f"cannot decode {file}: {reason}{more}; mend or remove it, or leave such images out by --skip-bad")


def fingerprint(files: Sequence[Path], base: Path) -> str:
    """Which files these are: their names below `base`, sizes and times."""
    lines = []
    for file in files:
        facts = file.stat()
        lines.append(f"{str(file).removeprefix(str(base))}\0{facts.st_size}\0{facts.st_mtime_ns}")
    return _digest("\n".join(lines))[:16]


def cache_root(root: Path | None = None, outside: Path | None = None) -> Path:
    """$DOMAINWISE_CACHE, or `cache` in the data root, or, where that cannot be written to, in the user's cache folder.

    Never inside the folder whose images are cached.
    """
    if variable := os.environ.get("DOMAINWISE_CACHE"):
        return Path(variable).expanduser()
    root = root or data_root()
    own = root / "cache"
    inside = outside is not None and own.resolve().is_relative_to(outside.resolve())
    if root.is_dir() and not inside and os.access(own if own.is_dir() else root, os.W_OK):
        return own
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "domainwise"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _writable(home: Path) -> None:
    try:
        whole_files.writable_folder(home)
    except UserError:
        raise UserError(f"cannot write the decode cache to {home}: set DOMAINWISE_CACHE to a folder that can") from None


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Within it no other process builds in this folder; one that does is waited for.

    A file system without locks lets both build, each beside the entry's place; the last to finish keeps the first's.
    """
    with (home / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            Console(stderr=True).print("another process is decoding these images: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield
            return
        for remains in home.glob(".*.tmp"):  # of a build that was killed: nobody else is building now
            shutil.rmtree(remains, ignore_errors=True)
        yield


def _build(entry: Path, files: Sequence[Path], size: int, label: str) -> None:
    temporary = whole_files.temporary_beside(entry)
    temporary.mkdir()
    try:
        out = temporary / "images.bin"
        _reserve(out, len(files) * 3 * size * size)
        what = f"decoding {label} to {size} pixels, once"
        bad = {}
        for number, answer in spread(files, what, size=size, out=str(out)):
            if "unwritten" in answer:
                raise UserError(f"cannot write the decode cache to {entry.parent}: {answer['unwritten']}")
            if "bad" in answer:
                bad[number] = answer["bad"]
        _close_ranks(out, sorted(bad), len(files), 3 * size * size)
        with whole_files.atomic(temporary / "record.json") as record:
            record.write(json.dumps({"files": len(files), "bad": bad}).encode())
        state = entry.name.partition("-")[2]
        for old in entry.parent.glob("[0-9]*-*"):  # of an earlier state of the same collection, or damaged
            if old == entry or not old.name.endswith(state):
                shutil.rmtree(old, ignore_errors=True)
        with suppress(OSError):  # it is there already where there are no locks
            temporary.rename(entry)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _reserve(out: Path, length: int) -> None:
    """A file of this length, whose space is surely there where the file system can tell."""
    with out.open("wb") as file:
        file.truncate(length)
        try:
            os.posix_fallocate(file.fileno(), 0, length)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise UserError(
                    f"no room for {length / 2**30:.1f} GiB of decoded images in {out.parent.parent}: set "
                    "DOMAINWISE_CACHE to a folder with more, or use a smaller --image-size"
                ) from None


def _close_ranks(out: Path, bad: Sequence[int], rows: int, length: int) -> None:
    """Moves the rows after a bad one forward over it, and flushes the file to the disk."""
    with out.open("r+b") as file:
        holes = set(bad)
        target = bad[0] if bad else rows
        for row in range(target, rows):
            if row not in holes:
                os.pwrite(file.fileno(), os.pread(file.fileno(), length, row * length), target * length)
                target += 1
        file.truncate(target * length)
        os.fsync(file.fileno())


def _open(entry: Path, size: int, count: int) -> Decoded | None:
    """The entry's images, mapped; None where there is no whole entry."""
    try:
        record = json.loads((entry / "record.json").read_bytes())
        bad = {int(number): str(reason) for number, reason in record["bad"].items()}
        shape = (record["files"] - len(bad), 3, size, size)
        with (entry / "images.bin").open("rb") as file:
            if record["files"] != count or os.fstat(file.fileno()).st_size != math.prod(shape):
                return None
            images = _mapped(file.fileno(), math.prod(shape)).view(shape)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Decoded(images, bad)


def _mapped(descriptor: int, length: int) -> Tensor:
    """The file as a tensor that processes share; writing to it, which nobody does, would change this process's only."""
    if not length:
        return torch.empty(0, dtype=torch.uint8)
    pages = mmap.mmap(descriptor, length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    if length < POPULATED_SHARE * _available():
        with suppress(OSError):
            pages.madvise(POPULATE_READ)
    return torch.frombuffer(pages, dtype=torch.uint8)


def _available() -> int:
    """Bytes of memory that can be had without swapping; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
