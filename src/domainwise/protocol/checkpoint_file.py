"""A training's state in a file that ends in its SHA-256: a checkpoint that was changed or cut short is none."""

import hashlib
import io
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

from domainwise.core import files
from domainwise.core.errors import UserError

MAGIC = b"domainwise checkpoint, SHA-256: "


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes the whole file or nothing."""
    import torch

    with files.atomic(path) as file:
        hashed = _Hashed(file)
        torch.save(state, hashed)  # type: ignore[arg-type]
        file.write(_trailer(hashed.digest.digest()))


def load(path: Path) -> dict[str, Any]:
    """The state, read without executing code; a damaged file is a UserError, a missing one a FileNotFoundError."""
    import torch

    data = memoryview(path.read_bytes())
    length = len(_trailer(bytes(32)))
    payload = data[:-length]
    if data[-length:] != _trailer(hashlib.sha256(payload).digest()):
        raise UserError(f"{path} is damaged (its checksum does not fit)")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except (EOFError, RuntimeError, ValueError, KeyError, UnpicklingError):
        raise UserError(f"{path} holds no checkpoint") from None
    return state


def _trailer(digest: bytes) -> bytes:
    return MAGIC + digest


class _Hashed:
    """A file whose content is hashed as it is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()
