"""The feature cache: what a frozen network makes of an image, computed once per image and used by every later run.

A cache folder holds, per network and its weights, one entry per image size and way of computing:

    <cache>/<network>-features-<digest>/<size>-<digest>/<number>.safetensors    keys, int64 [n], the images' contents
                                                                                features, float32 [n, F]

Files are written whole, with a checksum; a damaged one is computed again. An interrupted computation continues after
the last file. One process at a time computes; others wait and share.
"""

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.weights_file import load_weights, save_weights
from domainwise.data.images import progress
from domainwise.data.images.cache import locked
from domainwise.data.images.cache_folder import SOURCE, cache_root

SEGMENT = 512
"""Images per file: what an interruption loses at most."""


def cached_features(
    keys: Tensor, compute: Callable[[Tensor], Tensor], *, network: str, weights: str, size: int, computed_by: str
) -> Tensor:
    """Features [N, F] of images with these fingerprints; `compute` makes those of the row numbers that are missing.

    `network` is its name, `weights` their fingerprint, `computed_by` everything else that the features depend on.
    """
    identity = f"{network}#{weights}"
    plain = re.sub(r"[^\w.-]+", "-", network, flags=re.ASCII).strip("-.")[-40:] or "network"
    collection = cache_root() / f"{plain}-features-{_digest(identity, 12)}"
    entry = files.writable_folder(collection / f"{size}-{_digest(computed_by, 16)}")
    known, features = _read(entry)
    if not torch.isin(keys, known).all():
        with locked(collection, "another process is computing these features: waiting for it"):
            files.write(collection / SOURCE, f"features of {identity}".encode())
            _complete(entry, keys, compute, network)
            known, features = _read(entry)
    order = known.argsort()
    return torch.cat(features)[order[torch.searchsorted(known[order], keys)]]


def _complete(entry: Path, keys: Tensor, compute: Callable[[Tensor], Tensor], network: str) -> None:
    missing = _first_of_each(keys, _read(entry)[0])
    number = max((int(file.stem) for file in _segments(entry)), default=-1)
    with progress.show(f"features of {network}", len(missing)) as advance:
        for rows in missing.split(SEGMENT):
            part, number = compute(rows).float().cpu(), number + 1
            save_weights(entry / f"{number:06}.safetensors", {"keys": keys[rows], "features": part})
            advance(len(rows))


def _read(entry: Path) -> tuple[Tensor, list[Tensor]]:
    """Keys [n], and features in parts; files that are damaged are removed."""
    keys, parts = [torch.zeros(0, dtype=torch.int64)], []
    for file in _segments(entry):
        try:
            tensors = load_weights(file)
            key, part = tensors["keys"], tensors["features"]
            whole = key.ndim == 1 and part.ndim == 2 and len(key) == len(part) and key.dtype == torch.int64
        except (UserError, KeyError):
            whole = False
        if whole:
            keys.append(key)
            parts.append(part)
        else:
            with suppress(OSError):
                file.unlink()
    return torch.cat(keys), parts


def _segments(entry: Path) -> list[Path]:
    return sorted(file for file in entry.glob("*.safetensors") if file.stem.isdecimal())


def _first_of_each(keys: Tensor, known: Tensor) -> Tensor:
    """The first row of every key that is not known, in order."""
    unique, inverse = keys.unique(return_inverse=True)
    first = torch.full((len(unique),), len(keys)).scatter_reduce(0, inverse, torch.arange(len(keys)), "amin")
    return first[~torch.isin(unique, known)].sort().values


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
