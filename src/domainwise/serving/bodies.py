"""The image files in a request: parts of a form, base64 in JSON, or the bytes of one image."""

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from domainwise.serving.images import check_size
from domainwise.serving.limits import Limits, Refused, busy

if TYPE_CHECKING:
    from starlette.requests import Request

PIECE = 1 << 16
"""Bytes of a form that are parsed before other requests have their turn."""
LONGEST_NAME = 80
HOW = 'send {"image": "base64"} or {"images": ["base64", ...]}'


class File(NamedTuple):
    """One image file, the name it has in messages, and the one it was sent with."""

    name: str
    data: bytes
    sent_as: str | None = None


class Bodies:
    """Reads bodies; all that are held in memory have `pending_bytes` at most."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pending = 0  # bytes

    @contextmanager
    def held(self, body: bytearray) -> Iterator[None]:
        """Context manager: gives the room of a body back at its end."""
        try:
            yield
        finally:
            self.pending -= len(body)
            body.clear()

    async def read(self, request: "Request", body: bytearray) -> None:
        """Appends what arrives to `body`, or refuses it."""
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared[:20]) > self.limits.request_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                async for piece in pieces(request):
                    if len(body) + len(piece) > self.limits.request_bytes:
                        raise self._too_large()
                    if self.pending + len(piece) > self.limits.pending_bytes:
                        raise busy("the server holds as many bytes as it may")
                    self.pending += len(piece)
                    body += piece
        except TimeoutError:
            raise Refused(408, "slow", f"the body took longer than {self.limits.read_seconds:g} s") from None

    def _too_large(self) -> Refused:
        most = f"{self.limits.request_megabytes:g} MiB"
        return Refused(413, "too_large", f"the request has more than {most}: send fewer or smaller images")

    async def drain(self, request: "Request") -> None:
        """Takes the rest of a refused body, and forgets it: a client that still writes would not read the answer."""
        size = 0
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                async for piece in pieces(request):
                    size += len(piece)
                    if size > self.limits.request_bytes:
                        return
        except (TimeoutError, Refused):
            return

    async def files(self, request: "Request", body: bytearray) -> list[File]:
        """The image files of a body, at least one."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            images = await self._form(request, body)
        elif kind == "application/json":
            images = await asyncio.to_thread(self._json, bytes(body))
        else:
            images = [File("the image", bytes(body))]
        if not images:
            raise Refused(400, "no_images", "the request has no image: send one or more")
        return images

    async def _form(self, request: "Request", body: bytearray) -> list[File]:
        from starlette.datastructures import UploadFile
        from starlette.formparsers import MultiPartException, MultiPartParser

        async def stream() -> AsyncGenerator[bytes, None]:
            for start in range(0, len(body), PIECE):
                yield bytes(body[start : start + PIECE])
                await asyncio.sleep(0)

        most = self.limits.max_images
        parser = MultiPartParser(request.headers, stream(), max_files=most + 1, max_fields=0)
        parser.spool_max_size = self.limits.request_bytes  # nothing is written to a disk
        try:
            form = await parser.parse()
        except MultiPartException as error:
            if "Too many files" in error.message:
                raise self._too_many("more") from None
            reason = "fields that are no files" if "Too many fields" in error.message else error.message.rstrip(".")
            raise Refused(
                400, "bad_form", f"the form cannot be read ({reason}): send image files, options in the URL"
            ) from None
        uploads = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
        self._check_count(len(uploads))
        return [
            File(_named(number, len(uploads), part.filename), await part.read(), part.filename)
            for number, part in enumerate(uploads, start=1)
        ]

    def _json(self, body: bytes) -> list[File]:
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(400, "bad_json", f"the body is not JSON: {HOW}") from None
        given: Any = content.get("images", content.get("image")) if isinstance(content, dict) else None
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or len(content) != 1 or not all(isinstance(text, str) for text in texts):
            raise Refused(400, "bad_json", f"the JSON names no images: {HOW}")
        self._check_count(len(texts))
        return [self._decoded(text, _named(number, len(texts))) for number, text in enumerate(texts, start=1)]

    def _decoded(self, text: str, name: str) -> File:
        _, comma, rest = text[:PIECE].partition(",")
        if text.startswith("data:") and comma:
            text = text[len(text[:PIECE]) - len(rest) :]
        check_size(len(text) * 3 // 4 - 2, self.limits, name)
        try:
            return File(name, base64.b64decode(text, validate=True))
        except (ValueError, binascii.Error):
            raise Refused(400, "bad_base64", f"{name} is not base64: {HOW}") from None

    def _check_count(self, count: int) -> None:
        if count > self.limits.max_images:
            raise self._too_many(str(count))

    def _too_many(self, count: str) -> Refused:
        most = self.limits.max_images
        return Refused(413, "too_many_images", f"{count} images in one request: send {most} at most")


def _named(number: int, count: int, file: str | None = None) -> str:
    """ "the image", or "image 2 (cat.jpg)"."""
    place = "the image" if count == 1 else f"image {number}"
    return f"{place} ({file[:LONGEST_NAME]})" if file else place


async def pieces(request: "Request") -> AsyncGenerator[bytes, None]:
    """What arrives of a body; a client that goes away is Refused."""
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "gone", "the client went away")
        more = message.get("more_body", False)
        yield message.get("body", b"")
