"""The folder of decoded images: where it is, what it holds, how to clear it. cache.py has its layout; no torch."""

import fcntl
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from domainwise.core import files
from domainwise.core.errors import UserError, unknown

VARIABLE = "DOMAINWISE_CACHE"
SOURCE = ".source"
"""File in a collection's folder: the folder of the images that were decoded."""
LOCK = ".lock"
COLLECTION = re.compile(r"[\w.-]+-[0-9a-f]{12}", re.ASCII)
ENTRY = re.compile(r"\d+(max)?-[0-9a-f]{16}|\.\d+(max)?-[0-9a-f]{16}\.[0-9a-f]+\.tmp")


def cache_root() -> Path:
    """$DOMAINWISE_CACHE, or `domainwise` in the user's cache folder."""
    if variable := os.environ.get(VARIABLE):
        return files.expanded(variable)
    if sys.platform == "darwin":
        return files.expanded("~/Library/Caches/domainwise")
    if sys.platform == "win32":
        return files.expanded(os.environ.get("LOCALAPPDATA") or "~/AppData/Local") / "domainwise" / "cache"
    return files.expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "domainwise"


@dataclass(frozen=True)
class CachedImages:
    """The decoded images of one folder or dataset, at one or several sizes."""

    folder: Path
    source: str
    """The folder of the images; empty if unknown."""
    sizes: tuple[int, ...]
    limits: tuple[int, ...]
    """The largest short sides of images at their own sizes."""
    bytes: int
    used: float
    """When it was last used, in seconds since 1970."""

    @property
    def name(self) -> str:
        return self.folder.name

    def clear(self) -> None:
        """Removes the decoded images, and nothing that this package has not written."""
        with _unused(self.folder):
            for entry in _entries(self.folder):
                shutil.rmtree(entry, ignore_errors=True)
            for name in (SOURCE, LOCK):
                (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()


def cached_images(root: Path) -> list[CachedImages]:
    """What a cache folder holds, the largest first."""
    folders = [path for path in sorted(root.iterdir()) if COLLECTION.fullmatch(path.name)] if root.is_dir() else []
    cached = [_described(folder, entries) for folder in folders if (entries := list(_entries(folder)))]
    return sorted(cached, key=lambda one: -one.bytes)


def chosen(cached: Sequence[CachedImages], name: str | None) -> list[CachedImages]:
    """All, or those of a name: a folder's in the cache, or of a dataset or folder of images."""
    if name is None:
        return list(cached)
    matching = [one for one in cached if name in (one.name, one.name.rpartition("-")[0], one.source)]
    if not matching:
        raise unknown("cache", name, [one.name for one in cached])
    return matching


def _described(folder: Path, entries: Sequence[Path]) -> CachedImages:
    source = ""
    with suppress(OSError):
        source = os.fsdecode((folder / SOURCE).read_bytes()).encode(errors="replace").decode()
    forms = {entry.name.partition("-")[0] for entry in entries if not entry.name.startswith(".")}
    sizes = sorted(int(form) for form in forms if form.isdecimal())
    limits = sorted(int(form.removesuffix("max")) for form in forms if not form.isdecimal())
    total = sum(file.stat().st_size for entry in entries for file in entry.rglob("*") if file.is_file())
    used = max(entry.stat().st_mtime for entry in entries)
    return CachedImages(folder, source, tuple(sizes), tuple(limits), total, used)


def _entries(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if ENTRY.fullmatch(path.name) and path.is_dir())


class _unused:
    """Within it, no process decodes into the folder; one that does now is a UserError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        self.file = (self.folder / LOCK).open("w")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.close()
            raise UserError(f"another process is decoding images into {self.folder}: try again later") from None
        except OSError:
            pass  # a file system without locks

    def __exit__(self, *_: object) -> None:
        self.file.close()
