"""Images elsewhere: at URLs (s3://..., gs://...) through fsspec, which is imported only for them, or inside files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from domainwise.core.errors import UserError, one_line
from domainwise.data.images.decode import Packed

Location = Path | str
"""A file on this machine, the URL of one elsewhere, or the address of an image inside a file."""
CHANGES = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")
"""What file systems call a mark that changes with a file."""


def is_url(location: object) -> bool:
    return isinstance(location, str) and "://" in location


def states(urls: Sequence[str]) -> dict[str, str]:
    """{URL: size and time, or whatever else changes with the file}; a URL without a file is not in it.

    Folders are listed, once each: a request for every file would take long.
    """
    result: dict[str, str] = {}
    listed: dict[str, dict[str, dict[str, Any]]] = {}
    containers: dict[Path, str] = {}
    for url in urls:
        if inside := container(url):
            if inside not in containers:
                containers[inside] = _state(inside)
            if containers[inside]:
                result[url] = containers[inside]
            continue
        system, path = _file_system(url)
        parent = url.rpartition("/")[0]
        if parent not in listed:
            listed[parent] = _listing(system, path.rpartition("/")[0])
        facts = listed[parent].get(path.strip("/"))
        if facts is not None and facts.get("type") != "directory":
            changed = next((str(facts[name]) for name in CHANGES if facts.get(name)), "")
            result[url] = f"{facts.get('size')}\0{changed}"
    return result


def container(location: Location) -> Path | None:
    """The file that an image is inside of; None where it is a file of its own."""
    inside = Packed.parse(str(location))
    return None if inside is None else Path(inside.file)


def shown(location: Location) -> str:
    """For a person to read."""
    if (inside := Packed.parse(str(location))) is None:
        return str(location)
    where = f"row {inside.row + 1}" + (f" of row group {inside.group + 1}" if inside.group else "")
    return f"{inside.column} in {where} of {inside.file}"


def _state(file: Path) -> str:
    """Size and time; empty for a file that is not there."""
    try:
        state = file.stat()
    except OSError:
        return ""
    return f"{state.st_size}\0{state.st_mtime_ns}"


def _listing(system: Any, folder: str) -> dict[str, dict[str, Any]]:
    try:
        return {facts["name"].strip("/"): facts for facts in system.ls(folder, detail=True)}
    except FileNotFoundError:
        return {}
    except Exception as error:  # every file system has its own
        reason = one_line(error)
        raise UserError(f"cannot list {folder} ({reason}): check the address and your access to it") from None


@cache
def _protocol(name: str) -> str:
    try:
        import fsspec
    except ImportError:
        raise UserError(
            f"files at {name}://... need the package fsspec: pip install 'domainwise[tables]', or copy the files here"
        ) from None
    try:
        fsspec.get_filesystem_class(name)
    except (ImportError, ValueError) as error:
        reason = one_line(error)
        raise UserError(f"cannot read {name}://... ({reason}): install it, or copy the files here") from None
    return name


def _file_system(url: str) -> tuple[Any, str]:
    _protocol(url.partition("://")[0])
    from fsspec.core import url_to_fs

    try:
        system, path = url_to_fs(url)
    except Exception as error:
        reason = one_line(error)
        raise UserError(f"cannot open {url} ({reason}): check the address") from None
    return system, str(path)
