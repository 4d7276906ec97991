"""Where a dataset comes from, where it is looked for below the data root, and what to do when it is not there."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from domainwise.core.errors import UserError
from domainwise.data.sources.archives import extract
from domainwise.data.sources.downloads import Download, Progress, fetch


@dataclass(frozen=True)
class Part:
    """One thing that a dataset is made of: several files or folders that lie together.

    `needs` lists them, each with the names it is known by; `places` the folders below the data root where they may lie.
    """

    name: str
    places: tuple[str, ...]
    needs: tuple[tuple[str, ...], ...]
    layout: str = ""
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    """The page to open in a browser and the file to take there, for links that a plain request cannot follow."""
    archives: tuple[tuple[str, str], ...] = ()
    """(file put into the data root by hand, folder it is unpacked as)."""
    prepare: Callable[[Path], None] = lambda _: None
    """Turns what was fetched into what is needed."""

    @property
    def size(self) -> int | None:
        """Bytes to download, where known."""
        sizes = [download.size for download in self.downloads]
        return sum(size for size in sizes if size) if sizes and all(sizes) else None

    def look(self, root: Path) -> list[Path] | None:
        """What is needed, in the order of `needs`, from the first place that has all of it."""
        for place in self.places:
            found = [self._find(root / place, names) for names in self.needs]
            whole = [path for path in found if path is not None]
            if len(whole) == len(found):
                return whole
        return None

    def find(self, root: Path, dataset: str) -> list[Path]:
        """Like `look`; it is the user's mistake if it is not there."""
        found = self.look(root)
        if found is None:
            raise UserError(self.missing(root, dataset))
        return found

    def missing(self, root: Path, dataset: str) -> str:
        """Where it was looked for, what was expected there, and how to get it."""
        folders = [root / place for place in self.places]
        begun = next((f for f in folders if f != root and any(self._find(f, names) for names in self.needs)), None)
        expected = [names[0] for names in self.needs if not (begun and self._find(begun, names))]
        layout = f" ({self.layout})" if self.layout else ""
        where = begun or ", ".join(map(str, folders))
        return (
            f"{self.name} not found: looked in {where} for {', '.join(expected)}{layout}; "
            f"{self.advice(root, dataset)}, or name another folder with --data-root"
        )

    def advice(self, root: Path, dataset: str) -> str:
        """How to get it."""
        command = f"domainwise data get {dataset}"
        if self.downloads:
            return f"get it with: {command}"
        if self.archives:
            return f"{self.by_hand}, put it into {root} and run: {command}"
        return self.by_hand

    def get(
        self, root: Path, dataset: str, *, progress: Callable[[Download], Progress], say: Callable[[str], None]
    ) -> None:
        """Fetches, unpacks and prepares what is not there yet; tells the steps by hand if that is not enough."""
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
    """What is publicly known of a dataset."""

    page: str
    terms: str
    images: int
    parts: tuple[Part, ...] = ()
