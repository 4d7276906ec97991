"""model.json: everything about a trained model except its weights; checked in full when it is read."""

import hashlib
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from domainwise.core.errors import UserError
from domainwise.core.parsing import Count, Positive, Seconds, check, checksum, parse_any
from domainwise.core.provenance import package_version
from domainwise.protocol.averages import AveragedSteps
from domainwise.protocol.calibration import HIGHEST, LOWEST, Calibration
from domainwise.protocol.metrics import ACCURACY
from domainwise.protocol.network_names import HubName, is_hub
from domainwise.protocol.reading import DEEPEST_GREY
from domainwise.protocol.saved_weights import describe_average, describe_step
from domainwise.protocol.spaces import HParams

if TYPE_CHECKING:
    from domainwise.data.preprocessing import Preprocessing

ADVICE = "restore it or train the model again"
FORMAT = 1
"""Incremented when the meaning of a model's folder changes."""
LARGEST_INPUT = 1 << 24
"""The most numbers in one input; a larger shape is damaged, and building its network could exhaust the memory."""


@dataclass(frozen=True)
class _Step:
    """Of which step the weights are, or what they are the average of."""

    step: Count
    selected: bool
    averaged: AveragedSteps | None = None


@dataclass(frozen=True)
class _Worst:
    domain: str
    mean: float


@dataclass(frozen=True)
class _Unseen:
    """What `models.unseen` has estimated."""

    rule: str
    pairs: Count
    mean: float
    error: float | None
    worst: _Worst
    domains: dict[str, float]
    errors: dict[str, float | None] = field(default_factory=dict)
    metric: str = ACCURACY.name


TRAINING: Mapping[str, Any] = {
    "weights": _Step | None,
    "unseen": _Unseen | None,
    "seconds": Seconds,
    "steps_chosen_by": str,
    "run": dict[str, Any] | None,
    "made_of": dict[str, Any],
    "last_layer": dict[str, Any],
}
"""The entries of `training` that are read again; the others are for human readers."""


@dataclass(frozen=True)
class Card:
    """A model's algorithm, inputs and training; `versions` and entries of `training` not in TRAINING are for people."""

    algorithm: str
    hparams: HParams
    network: str
    classes: tuple[str, ...]
    shape: tuple[Positive, ...]  # of one input: [channels, height, width], or [columns] of a vector
    mean: tuple[float, ...]  # per channel or column
    std: tuple[float, ...]
    domains: Mapping[str, Positive]  # training samples of each training domain
    training: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    members: tuple[HParams, ...] = ()  # the hyper-parameters of each model of an ensemble; empty for a single model
    calibration: Calibration | None = None
    window: tuple[int, int] | None = None  # the grey values of 16-bit files that are read as black and white
    architecture: Mapping[str, Any] = field(default_factory=dict)  # of a hub's backbone, see nets.hub.configuration

    @property
    def preprocessing(self) -> "Preprocessing":
        import torch

        from domainwise.data.preprocessing import Preprocessing

        dtype = torch.float64 if len(self.shape) == 1 else torch.float32
        made = Preprocessing.from_values(self.shape, self.classes, self.mean, self.std, dtype)
        return replace(made, window=self.window)

    @property
    def weights(self) -> str:
        """Of which step or steps the weights are, or what they are made of, in words."""
        later = self.training.get("last_layer")
        return f"{self._trained_weights}; {later['words']}" if later else self._trained_weights

    @property
    def _trained_weights(self) -> str:
        saved, run = self.training.get("weights"), self.training.get("run")
        if made := self.training.get("made_of"):
            return str(made["words"])
        if saved is not None:
            chosen = self.training.get("steps_chosen_by")
            averaged = saved.get("averaged")
            which = describe_average(AveragedSteps(**averaged)) if averaged else describe_step(**saved)
            return which + (f"; {chosen}" if chosen else "")
        return describe_step(run["steps"] - 1, selected=False) if run else "weights of an unknown step"

    def write(self, digests: Mapping[str, str]) -> bytes:
        """As JSON, with the digests of the other files and a checksum."""
        content = {"format": FORMAT, **asdict(self), "files": dict(digests)}
        if not self.members:
            del content["members"]  # which earlier versions do not know
        if self.calibration is None:
            del content["calibration"]  # a model that has one gives other probabilities: earlier versions refuse it
        if self.window is None:
            del content["window"]  # earlier versions, which would read other pixels, refuse a model that has one
        if not self.architecture:
            del content["architecture"]  # earlier versions know no backbone of a hub
        return json.dumps({**content, "checksum": checksum(content)}, indent=1).encode()

    @classmethod
    def read(cls, text: bytes, where: str) -> tuple["Card", dict[str, str]]:
        """The card and the digests of the other files; anything but a complete card of this format is a UserError."""
        content = check(parse_any(text, where, ADVICE), dict[str, Any], where, ADVICE)
        if (written := content.pop("format", None)) != FORMAT or isinstance(written, bool):
            newer = isinstance(written, int) and written > FORMAT
            advice = "update domainwise" if newer else "save the model again"
            raise UserError(f"{where} is of format {written!r}, this version reads format {FORMAT}: {advice}")
        if content.pop("checksum", None) != checksum({"format": FORMAT, **content}):
            raise UserError(f"{where} is damaged or was changed by hand: {ADVICE}")
        digests = check(content.pop("files", None), dict[str, str], f'{where}, "files"', ADVICE)
        card = check(content, cls, where, ADVICE)
        for name, kind in TRAINING.items():
            if name in card.training:
                check(card.training[name], kind, f'{where}, "training.{name}"', ADVICE)
        for name, entry, kind in (("made_of", "words", str), ("last_layer", "words", str), ("run", "steps", Positive)):
            if described := card.training.get(name):
                check(described.get(entry), kind, f'{where}, "training.{name}.{entry}"', ADVICE)
        if fault := card._fault():
            raise UserError(f"{where} describes no model ({fault}): {ADVICE}")
        return card, digests

    def _fault(self) -> str:
        """In what the fields contradict one another; nothing if they do not."""
        if len(self.shape) not in (1, 3) or math.prod(self.shape) > LARGEST_INPUT:
            return f"an input of shape {list(self.shape)}"
        if not len(self.mean) == len(self.std) == self.shape[0] or min(self.std) <= 0:
            return "mean and std"
        if self.calibration is not None and not LOWEST <= self.calibration.temperature <= HIGHEST:
            return f"a temperature of {self.calibration.temperature:g}"
        if self.window is not None and not 0 <= self.window[0] < self.window[1] <= DEEPEST_GREY:
            return f"a window of {list(self.window)}"
        return "" if self.domains and self.classes else "no domains or no classes"


def versions(network: str = "") -> dict[str, str]:
    """The versions a model with this network was trained with."""
    import torch

    from domainwise import __version__

    known = {"domainwise": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
    if not is_hub(network):
        return known
    package = "timm" if HubName.parse(network).library == "timm" else "transformers"
    return known | {package: package_version(package) or "unknown"}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
