"""Gzip files, unpacked piece by piece: checked to their end, and never into more memory than their size warrants."""

import zlib
from collections.abc import Iterator
from pathlib import Path

from domainwise.core.errors import UserError
from domainwise.core.parsing import read_file

LARGEST_FILE = 1 << 30
MARGIN, RATIO = 1 << 26, 200
"""A file unpacks to at most so many bytes, and so many more per byte; records unpack to 10 times their size."""
LONGEST_LINE = 1 << 24
PIECE = 1 << 20


def unpacked(path: Path, advice: str) -> bytes:
    """The whole content."""
    return b"".join(_pieces(path, advice))


def unpacked_lines(path: Path, advice: str) -> Iterator[bytes]:
    """The content line by line, without the ends of lines."""
    line = b""
    for piece in _pieces(path, advice):
        *whole, line = (line + piece).split(b"\n")
        yield from whole
        if len(line) > LONGEST_LINE:
            raise UserError(f"{path} has a line of more than {LONGEST_LINE >> 20} MiB: {advice}")
    if line:
        raise UserError(f"{path} is cut short within a line: {advice}")


def _pieces(path: Path, advice: str) -> Iterator[bytes]:
    packed = memoryview(read_file(path, advice, LARGEST_FILE))
    allowed = MARGIN + RATIO * len(packed)
    unpacker = zlib.decompressobj(wbits=31)
    for start in range(0, len(packed), PIECE):
        rest: bytes | memoryview = packed[start : start + PIECE]
        while rest and not unpacker.eof:
            try:
                piece = unpacker.decompress(rest, PIECE)
            except zlib.error as error:
                raise UserError(f"{path} is damaged, or no gzip file ({error}): {advice}") from None
            rest = unpacker.unconsumed_tail
            allowed -= len(piece)
            if allowed < 0:
                raise UserError(f"{path} unpacks to more than {RATIO} times its size: {advice}")
            yield piece
        if unpacker.eof and (unpacker.unused_data or start + PIECE < len(packed)):
            raise UserError(f"{path} goes on after its end: {advice}")
    while not unpacker.eof:
        piece = unpacker.decompress(b"", PIECE)
        if not piece and not unpacker.eof:
            raise UserError(f"{path} is cut short: {advice}")
        yield piece
