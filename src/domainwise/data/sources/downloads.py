"""Downloads that continue where they stopped, and count as complete only when their checksum agrees."""

import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from domainwise.core.errors import UserError

Progress = Callable[[int, int | None], None]
"""Told the bytes that are here and, once known, those of the whole file."""

CHUNK = 1 << 18
PATIENCE_SECONDS = 30.0
ATTEMPTS = 5
"""In a row without a single new byte."""
PAUSE_SECONDS = 2.0


@dataclass(frozen=True)
class Download:
    """A file that a plain request fetches: where it goes below the data root, and the checksum its publisher gives."""

    url: str
    checksum: str  # "md5:..." or "sha256:..."
    file: str
    size: int | None  # bytes, where known
    unpack: str = ""
    """The folder below the data root that it is unpacked as, if it is an archive."""


def fetch(download: Download, root: Path, progress: Progress = lambda _done, _total: None) -> Path:
    """The file below `root`, fetched unless it is there with the right checksum. Partial files are continued."""
    import pooch

    target = root / download.file

    def resume(url: str, output_file: str, _pooch: object) -> None:
        partial = target.with_name(f"{target.name}.part")
        _complete(url, partial, progress)
        partial.replace(output_file)

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pooch.get_logger().setLevel("WARNING")
        pooch.retrieve(download.url, download.checksum, target.name, target.parent, downloader=resume)
    except ValueError:
        raise UserError(f"{download.url}: what came has not the checksum {download.checksum}: try again") from None
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}") from None
    return target


def _complete(url: str, partial: Path, progress: Progress) -> None:
    """Asks for what is missing until nothing is; gives up after several attempts that brought nothing."""
    fruitless = 0
    while True:
        before = partial.stat().st_size if partial.exists() else 0
        try:
            if _ask(url, partial, before, progress):
                return
            reason = "the connection ended early"
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise UserError(f"{url} cannot be fetched: {error.code} {error.reason}") from None
            reason = f"{error.code} {error.reason}"
        except (http.client.HTTPException, urllib.error.URLError, ssl.SSLError, TimeoutError, ConnectionError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        have = partial.stat().st_size if partial.exists() else 0
        fruitless = 0 if have > before else fruitless + 1
        if fruitless == ATTEMPTS:
            kept = f"; the {have:,} bytes that came are kept, the same command continues" if have else ""
            raise UserError(f"{url} cannot be fetched: {reason}{kept}")
        time.sleep(PAUSE_SECONDS if fruitless else 0)


def _ask(url: str, partial: Path, start: int, progress: Progress) -> bool:
    """One request, from byte `start` on; whether the file is now complete by what the server says of its length."""
    headers = {"User-Agent": "domainwise", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        reply = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{start}":
            return True
        partial.unlink()
        return False
    with reply:
        continues = reply.status == 206 and reply.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        done = start if continues else 0
        length = reply.headers.get("Content-Length")
        total = done + int(length) if length is not None else None
        with partial.open("ab" if continues else "wb") as file:
            progress(done, total)
            while chunk := reply.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress(done, total)
    return done == total or total is None
