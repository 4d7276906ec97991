"""One random stream per purpose, each derived from names: adding a purpose never shifts another."""

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def _digest(*keys: str | int) -> int:
    text = json.dumps(keys, separators=(",", ":"), ensure_ascii=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def seed(*keys: str | int) -> int:
    """A 63-bit seed that depends on all keys and nothing else."""
    return _digest(*keys) >> 1


def uniform(*keys: str | int) -> float:
    """The number in [0, 1) that belongs to these keys."""
    return (_digest(*keys) >> 11) / 2**53


def generator(*keys: str | int, device: "torch.device | str" = "cpu") -> "torch.Generator":
    """A random generator that belongs to these keys."""
    import torch

    return torch.Generator(device).manual_seed(seed(*keys))


def permutation(n: int, *keys: str | int) -> "Tensor":
    """The shuffle of range(n) that belongs to these keys."""
    import torch

    return torch.randperm(n, generator=generator(*keys))
