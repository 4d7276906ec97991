"""Weights as a safetensors file with a checksum: a flipped bit is an error, not another model.

torch is imported only where tensors are saved or loaded.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from domainwise.core import files
from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

KEY = "domainwise"
"""The entry of the file's metadata that holds the checksum; only one, since safetensors orders several at random."""

SHARED = "shared"
"""The entry of the metadata that names the file of tensors shared with other files."""


def save_weights(
    path: Path,
    tensors: "Mapping[str, Tensor]",
    metadata: Mapping[str, str] | None = None,
    *,
    shared: Collection[str] = (),
    folder: Path | None = None,
) -> None:
    """Writes the whole file or nothing; the same tensors and metadata give the same bytes.

    The tensors named in `shared` go to a file of their own in `folder`, named by their content, once for all files that
    share them.
    """
    import safetensors.torch

    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    described = dict(sorted((metadata or {}).items()))
    if shared and folder is not None:
        apart = {name: copies.pop(name) for name in shared}
        described[SHARED] = _digest(apart, {})[:16]
        file = folder / f"{described[SHARED]}.safetensors"
        if not file.exists():
            folder.mkdir(exist_ok=True)
            save_weights(file, apart)
    described["sha256"] = _digest(copies, described)
    files.write(path, safetensors.torch.save(copies, {KEY: json.dumps(described)}))


def load_weights(
    path: Path, advice: str = "restore it or train again", *, folder: Path | None = None
) -> "dict[str, Tensor]":
    """The tensors by name, on the CPU. A damaged file is a UserError; one without a checksum is read unchecked.

    `folder` holds the tensors that it shares with other files.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise UserError(f"{path} is {'no file' if path.exists() else 'missing'}: {advice}")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
            metadata = file.metadata() or {}
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): {advice}") from None
    except (SafetensorError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{path} is damaged ({str(error).splitlines()[0]}): {advice}") from None
    if KEY in metadata and not _agrees(metadata[KEY], tensors):
        raise UserError(f"{path} is damaged (its checksum does not fit): {advice}")
    if folder is not None and (shared := read_metadata(path).get(SHARED)):
        tensors |= load_weights(folder / f"{Path(shared).name}.safetensors", advice)
    return tensors


def read_metadata(path: Path) -> dict[str, str]:
    """What `save_weights` was given besides the tensors, read from the head of the file; empty if it holds none."""
    with path.open("rb") as file:
        head = file.read(int.from_bytes(file.read(8), "little"))
    try:
        described = json.loads(json.loads(head)["__metadata__"][KEY])
        return {name: value for name, value in described.items() if name != "sha256"}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _agrees(text: str, tensors: "Mapping[str, Tensor]") -> bool:
    try:
        described = json.loads(text)
        expected = described.pop("sha256")
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return False
    return bool(expected == _digest(tensors, described))


def _digest(tensors: "Mapping[str, Tensor]", metadata: object) -> str:
    """SHA-256 over the metadata and the name, type, shape and bytes of every tensor, in the order of names."""
    import torch

    result = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        result.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        result.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return result.hexdigest()
