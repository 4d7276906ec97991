"""JSON Lines files with a running checksum: a changed byte anywhere is an error.

A file grows by blocks of lines: the rows of one evaluation, or a status. The last line of a block ends in a field
"crc", the CRC-32 of all bytes of the file before that field. One calculation up to the last such field checks the whole
file. Files of earlier versions have no such field, and are read unchecked.
"""

import os
import re
import zlib
from pathlib import Path
from typing import IO, NamedTuple

from domainwise.core.errors import UserError
from domainwise.core.files import TAIL

MARK = b', "crc": "'
"""Never inside a text: there JSON escapes quotes."""
SEAL = re.compile(rb', "crc": "([0-9a-f]{8})"\}\n')
LENGTH = len(MARK) + len(b'01234567"}\n')


class Extent(NamedTuple):
    """The first bytes of a file: how many, and their CRC-32."""

    size: int
    crc: int

    def fits(self, data: bytes) -> bool:
        """Whether a file begins with these bytes."""
        return len(data) >= self.size and zlib.crc32(memoryview(data)[: self.size]) == self.crc


def seal(lines: bytes, before: int = 0) -> bytes:
    """Lines of JSON objects as a block, to be written after bytes of the CRC-32 `before`."""
    body = lines.removesuffix(b"}\n")
    return b'%s%s%08x"}\n' % (body, MARK, zlib.crc32(body, before))


def unseal(lines: bytes) -> bytes:
    """The lines without their checksums."""
    return SEAL.sub(b"}\n", lines)


def intact(data: bytes, where: object, advice: str) -> bytes:
    """The whole blocks of a file, checked; a block that a crash cut short is dropped.

    Of a file without checksums, its whole lines.
    """
    at = _last_seal(data)
    if at < 0:
        return data[: data.rfind(b"\n") + 1]
    seal, rest = SEAL.match(data, at), data[at + LENGTH :]
    if seal is None or zlib.crc32(memoryview(data)[:at]) != int(seal[1], 16) or rest.endswith(b"\n"):
        raise UserError(f"{where} is damaged (its checksum does not fit): {advice}")
    return data[: at + LENGTH]


def append_block(path: Path, lines: bytes) -> None:
    """Appends a block and flushes it to the disk; one that a crash cut short is removed first.

    The checksum continues the one before it: what was damaged stays damaged.
    """
    with path.open("ab+") as file:
        before = _extent(file)
        file.truncate(before.size)
        file.write(seal(lines, before.crc))
        file.flush()
        os.fsync(file.fileno())


def extent(path: Path) -> Extent:
    """The whole blocks of a file; none if it is absent."""
    try:
        with path.open("rb") as file:
            return _extent(file)
    except FileNotFoundError:
        return Extent(0, 0)


def _last_seal(data: bytes) -> int:
    """Where the last checksum begins, -1 without any; one that a crash cut short does not count."""
    at = data.rfind(MARK)
    return data.rfind(MARK, 0, at) if at >= 0 and len(data) - at < LENGTH else at


def _extent(file: IO[bytes]) -> Extent:
    size = file.seek(0, os.SEEK_END)
    for length in (min(size, TAIL), size):
        file.seek(-length, os.SEEK_END)
        data = file.read()
        at = _last_seal(data)
        if at >= 0 and (seal := SEAL.match(data, at)):
            rest = data[at + LENGTH :]
            kept = data[at : at + LENGTH] + (rest if rest.endswith(b"\n") else b"")
            return Extent(size - len(data) + at + len(kept), zlib.crc32(kept, int(seal[1], 16)))
    kept = data[: data.rfind(b"\n") + 1]
    return Extent(len(kept), zlib.crc32(kept))
