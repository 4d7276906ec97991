"""What a folder of images holds that a training leaves out, by kind, each with its remedy."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from domainwise.core.phrasing import counted
from domainwise.data.images.decode import SUFFIXES

UNREAD = (
    ".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".svg", ".psd", ".xcf", ".exr", ".hdr", ".dcm", ".nii", ".raw",
    ".x3f", ".cr2", ".cr3", ".nef", ".nrw", ".arw", ".srf", ".sr2", ".dng", ".orf", ".rw2", ".raf", ".pef", ".srw",
)  # fmt: skip
"""Suffixes of pictures that are not read: of phones, cameras, vector graphics, medicine."""
ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar", ".zst")

KINDS = {
    "too_deep": ("image", "too deep: move up to DIR/<domain>/<class>/"),
    "too_high": ("image", "too high: move down to DIR/<domain>/<class>/"),
    "unread": ("picture", "of a format that is not read: convert to JPEG or PNG"),
    "archives": ("archive", "not unpacked: put the images at DIR/<domain>/<class>/"),
    "hidden": ("image", "in hidden folders: rename the folders if the images are meant"),
    "names": ("name", "not in UTF-8: rename the file or folder"),
    "empty": ("folder", "without images: fill or remove"),
    "other": ("item", "that cannot be an image"),
}
"""What the things of a kind are, and what to do; most likely a mistake first."""
HARMLESS = ("other",)
SHOWN = 3


@dataclass(frozen=True)
class LeftOut:
    """Paths below the folder of images, by kind."""

    kinds: Mapping[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def add(self, entry: Path, root: Path, depth: int) -> None:
        """Adds what lies at an entry that is no domain (depth 0), no class (1) or no image of a class (2)."""
        name = printable(entry.name)
        path = f"{printable(str(entry.parent.relative_to(root)))}/{name}".removeprefix("./")
        suffix = entry.suffix.lower()
        if entry.is_dir():
            inside = [printable(str(file.relative_to(root))) for file in _images_below(entry)]
            if name != entry.name:
                self.kinds["names"].append(path)
            elif inside:
                self.kinds["hidden" if hidden(name) else "too_deep"].extend(inside)
            else:
                self.kinds["other"].append(path)
        elif hidden(name):
            self.kinds["other"].append(path)
        elif name != entry.name:
            self.kinds["names"].append(path)
        elif suffix in SUFFIXES and depth < 2:
            self.kinds["too_high"].append(path)
        else:
            kind = "unread" if suffix in UNREAD else "archives" if suffix in ARCHIVES else "other"
            self.kinds[kind].append(path)

    def lines(self, *, harmless: bool) -> list[str]:
        """One line per kind: how many, what they are, what to do, and the first of them."""
        return [
            f"ignored {counted(len(paths), KINDS[kind][0])} {KINDS[kind][1]}: {', '.join(paths[:SHOWN])}"
            + (", ..." if len(paths) > SHOWN else "")
            for kind, paths in self.kinds.items()
            if paths and (kind in HARMLESS) == harmless
        ]


def hidden(name: str) -> bool:
    """Whether the system made a file or folder of this name, not the user (macOS leaves ._x.png beside x.png)."""
    return name.startswith((".", "__MACOSX"))


def printable(name: str) -> str:
    """The name, with a question mark for every byte that is not UTF-8."""
    return name.encode(errors="replace").decode()


def _images_below(folder: Path) -> Iterator[Path]:
    """Files at any depth that are images, or pictures of formats that are not read; links are not followed."""
    for path, _, files in os.walk(folder):
        for name in sorted(files):
            if name.lower().endswith((*SUFFIXES, *UNREAD)) and not name.startswith("."):
                yield Path(path) / name
