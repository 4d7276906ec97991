"""Downloads that resume where they stopped and are verified by a checksum."""

import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from domainwise.core.errors import UserError

DownloadProgress = Callable[[int, int | None], None]
"""Callback(bytes downloaded, size of the file or None while unknown)."""

CHUNK = 1 << 18
PATIENCE_SECONDS = 30.0
ATTEMPTS = 5
"""Consecutive attempts without a new byte before giving up."""
PAUSE_SECONDS = 2.0


@dataclass(frozen=True)
class Download:
    """A file to download: its path below the data root, and the checksum given by its publisher."""

    url: str
    checksum: str  # "md5:..." or "sha256:..."
    file: str
    size: int | None  # bytes, where known
    unpack: str = ""
    """The folder below the data root to unpack it to, if it is an archive."""


def fetch(download: Download, root: Path, progress: DownloadProgress = lambda _done, _total: None) -> Path:
    """The file below `root`, downloaded unless it exists with the right checksum. Partial downloads are resumed."""
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
        raise UserError(f"{download.url}: the file does not have the checksum {download.checksum}: try again") from None
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}") from None
    return target


def _complete(url: str, partial: Path, progress: DownloadProgress) -> None:
    """Requests the missing bytes until the file is complete; gives up after ATTEMPTS without progress."""
    fruitless = 0
    while True:
        before = partial.stat().st_size if partial.exists() else 0
        try:
            if _request(url, partial, before, progress):
                return
            reason = "the connection ended early"
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise UserError(f"{url} cannot be fetched: {error.code} {error.reason}") from None
            reason = f"{error.code} {error.reason}"
        except (http.client.HTTPException, urllib.error.URLError, ssl.SSLError, TimeoutError, ConnectionError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        size = partial.stat().st_size if partial.exists() else 0
        fruitless = 0 if size > before else fruitless + 1
        if fruitless == ATTEMPTS:
            resume = f"; the {size:,} bytes that came are kept, the same command continues" if size else ""
            raise UserError(f"{url} cannot be fetched: {reason}{resume}")
        time.sleep(PAUSE_SECONDS if fruitless else 0)


def _request(url: str, partial: Path, start: int, progress: DownloadProgress) -> bool:
    """One request, from byte `start` on; returns whether the file now has the length that the server gives."""
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
