"""model.json: everything about a trained model except its weights; checked in full when it is read."""

import hashlib
import json
import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from domainwise.core.errors import UserError
from domainwise.protocol.spaces import HParams

if TYPE_CHECKING:
    from domainwise.data.preprocessing import Preprocessing

FORMAT = 1
"""Incremented when the meaning of a model's folder changes."""
LARGEST_INPUT = 1 << 24
"""The most numbers in one input; a larger shape is damaged, and building its network could exhaust the memory."""


@dataclass(frozen=True)
class Card:
    """A model's algorithm, inputs and training; `training` and `versions` are for human readers."""

    algorithm: str
    hparams: HParams
    network: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # of one input: [channels, height, width], or [columns] of a vector
    mean: tuple[float, ...]  # per channel or column
    std: tuple[float, ...]
    domains: Mapping[str, int]  # training samples of each training domain
    training: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def preprocessing(self) -> "Preprocessing":
        import torch

        from domainwise.data.preprocessing import Preprocessing

        dtype = torch.float64 if len(self.shape) == 1 else torch.float32
        return Preprocessing.from_values(self.shape, self.classes, self.mean, self.std, dtype)

    def write(self, digests: Mapping[str, str]) -> bytes:
        """As JSON, with the digests of the other files and a checksum."""
        content = {"format": FORMAT, **asdict(self), "files": dict(digests)}
        return json.dumps({**content, "checksum": _checksum(content)}, indent=1).encode()

    @classmethod
    def read(cls, text: bytes, where: str) -> tuple["Card", dict[str, str]]:
        """The card and the digests of the other files; anything but a complete card of this format is a UserError."""
        content = _object(text, where)
        if (written := content.get("format")) != FORMAT or isinstance(written, bool):
            newer = isinstance(written, int) and written > FORMAT
            advice = "update domainwise" if newer else "save the model again"
            raise UserError(f"{where} is of format {written!r}, this version reads format {FORMAT}: {advice}")
        if content.pop("checksum", None) != _checksum(content):
            raise UserError(f"{where} is damaged or was changed by hand: restore it or train the model again")
        try:
            del content["format"]
            digests = _mapping(content.pop("files"), str)
            return cls(**{name: _FIELDS[name](value) for name, value in content.items()})._checked(), digests
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{where} does not describe a model ({error}): train the model again") from None

    def _checked(self) -> "Card":
        """Raises ValueError if the fields contradict one another."""
        if len(self.shape) not in (1, 3) or min(self.shape) < 1 or math.prod(self.shape) > LARGEST_INPUT:
            raise ValueError(f"an input of shape {list(self.shape)}")
        if not len(self.mean) == len(self.std) == self.shape[0] or min(self.std) <= 0:
            raise ValueError("mean and std")
        if not self.domains or min(self.domains.values()) < 1 or not self.classes:
            raise ValueError("no domains or no classes")
        return self


def versions() -> dict[str, str]:
    """The versions a model was trained with."""
    import torch

    from domainwise import __version__

    return {"domainwise": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _object(text: bytes, where: str) -> dict[str, Any]:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        content = json.loads(text.decode(), parse_constant=refuse)
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError):
        raise UserError(f"{where} is cut short or no JSON: restore it or train the model again") from None
    return content


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _list(item: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is no list")
        return tuple(item(one) for one in value)

    return read


def _mapping(value: Any, kind: type | tuple[type, ...] = object) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(one, kind) for one in value.values()):
        raise TypeError(f"{value!r} is no object of the kind expected")
    return value


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "algorithm": _text,
    "hparams": lambda value: _mapping(value, (float, int, str, bool, type(None))),
    "network": _text,
    "classes": _list(_text),
    "shape": _list(_whole),
    "mean": _list(_number),
    "std": _list(_number),
    "domains": lambda value: {name: _whole(size) for name, size in _mapping(value).items()},
    "training": _mapping,
    "versions": lambda value: _mapping(value, str),
}
