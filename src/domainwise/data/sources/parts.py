"""The files of a published dataset: where they are looked for below the data root, and how to get them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from domainwise.core.errors import UserError
from domainwise.core.phrasing import command
from domainwise.data.sources.archives import extract
from domainwise.data.sources.downloads import Download, DownloadProgress, fetch


@dataclass(frozen=True)
class Part:
    """Files or folders of a dataset that lie in one folder.

    `needs` lists them, each with its possible names; `places` are the folders below the data root to look in.
    """

    name: str
    places: tuple[str, ...]
    needs: tuple[tuple[str, ...], ...]
    layout: str = ""
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    """Which file to download from which page in a browser, for links that a plain request cannot follow."""
    archives: tuple[tuple[str, str], ...] = ()
    """(archive that the user puts into the data root, folder it is unpacked to)."""
    prepare: Callable[[Path], None] = lambda _: None
    """Converts the downloaded files into those needed."""

    @property
    def size(self) -> int | None:
        """Bytes to download, where known."""
        sizes = [download.size for download in self.downloads]
        return sum(size for size in sizes if size) if sizes and all(sizes) else None

    def look(self, root: Path) -> list[Path] | None:
        """The paths of `needs`, in order, in the first place that has all of them; None if no place has."""
        for place in self.places:
            paths = [path for names in self.needs if (path := self._find(root / place, names)) is not None]
            if len(paths) == len(self.needs):
                return paths
        return None

    def find(self, root: Path, dataset: str) -> list[Path]:
        """Like `look`; missing files are a UserError."""
        paths = self.look(root)
        if paths is None:
            raise UserError(self.missing(root, dataset), argument="data_root")
        return paths

    def missing(self, root: Path, dataset: str) -> str:
        """Which files are missing, where they were looked for, and how to get them."""
        folders = [root / place for place in self.places]
        begun = next((f for f in folders if f != root and any(self._find(f, names) for names in self.needs)), None)
        expected = [names[0] for names in self.needs if not (begun and self._find(begun, names))]
        layout = f" ({self.layout})" if self.layout else ""
        where = begun or ", ".join(map(str, folders))
        return (
            f"{self.name} not found: looked in {where} for {', '.join(expected)}{layout}; "
            f"{self.advice(root, dataset)}, or name another data root"
        )

    def advice(self, root: Path, dataset: str) -> str:
        """How to get the files."""
        get = command("data", "get", dataset)
        if self.downloads:
            return f"get it with: {get}"
        if self.archives:
            return f"{self.by_hand}, put it into {root} and run: {get}"
        return self.by_hand

    def get(
        self, root: Path, dataset: str, *, progress: Callable[[Download], DownloadProgress], say: Callable[[str], None]
    ) -> None:
        """Downloads, unpacks and converts what is missing; a UserError names the steps to do by hand."""
        if self.look(root):
            return
        for download in self.downloads:
            unpacked = root / (download.unpack or download.file)
            if unpacked.exists():
                continue
            file = fetch(download, root, progress(download))
            if download.unpack:
                say(f"unpacking {file}")
                extract(file, unpacked)
                file.unlink()
        for file_name, folder in self.archives:
            if (root / file_name).is_file() and not (root / folder).exists():
                say(f"unpacking {root / file_name}")
                extract(root / file_name, root / folder)
        self.prepare(root)
        self.find(root, dataset)

    @staticmethod
    def _find(folder: Path, names: tuple[str, ...]) -> Path | None:
        with suppress(OSError):
            return next((folder / name for name in names if (folder / name).exists()), None)
        return None


@dataclass(frozen=True)
class Source:
    """Where a dataset is published, its terms, its number of images, and its files."""

    page: str
    terms: str
    images: int
    parts: tuple[Part, ...] = ()
