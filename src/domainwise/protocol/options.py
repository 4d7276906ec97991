"""Training options: what all runs of a study share, whichever algorithm, domains, hyper-parameter draw and trial."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict, Unpack

from domainwise.protocol.averages import NONE
from domainwise.protocol.balance import UNCHANGED, ClassWeights
from domainwise.protocol.network_names import full_name
from domainwise.protocol.recipe import CONSTANT
from domainwise.protocol.runs import added
from domainwise.protocol.spaces import Value


class TrainingKeywords(TypedDict, total=False):
    """The fields of TrainingOptions as keyword arguments."""

    steps: int | None
    evaluate_every: int | None
    network: str | None
    seed: int
    precision: str
    hparams: Mapping[str, Value] | None
    weights: str
    full_curves: bool
    image_size: int | None
    augmentation: str | None
    track: Sequence[str]
    threads: int
    held_out: float | None
    average: str
    shared_start: bool
    start: str
    freeze: str
    lr_schedule: str
    early_stop: int
    clip_gradient: float
    train: str
    layer_decay: float
    balance: str
    class_weights: Mapping[str, float] | ClassWeights


@dataclass(frozen=True)
class TrainingOptions:
    """Made once, from flags or arguments, and passed whole. None stands for the dataset's default.

    `hparams` are values that the user fixed. `weights` is a file that the network starts from; networks that start from
    published weights need none. With `full_curves` every split is evaluated, not only those that selection needs. A run
    computes with `threads` CPU threads, on every machine. `held_out` is the fraction of a domain that is not trained
    on; with 0 there is no validation by training domains. `average` names an average of the weights that is evaluated
    too: "ema", "sma", "swad", or "none". With `shared_start` all draws of a trial have the same initial weights. The
    fields from `start` to `layer_decay` are the recipe of the training (`protocol.recipe`). `balance` ("class",
    "group") and `class_weights` change how often images are drawn (`protocol.balance`).
    """

    steps: int | None = None
    evaluate_every: int | None = None
    network: str | None = None
    seed: int = 0
    precision: str = "fp32"
    hparams: Mapping[str, Value] = field(default_factory=dict)
    weights: str = ""
    full_curves: bool = False
    image_size: int | None = None
    augmentation: str | None = None
    track: tuple[str, ...] = ()
    threads: int = added(1)
    held_out: float | None = added(None)
    average: str = added("")
    shared_start: bool = added(False)
    start: str = added("")
    freeze: str = added("")
    lr_schedule: str = added(CONSTANT)
    early_stop: int = added(0)
    clip_gradient: float = added(0.0)
    train: str = added("")
    layer_decay: float = added(1.0)
    balance: str = added("")
    class_weights: ClassWeights = added(())  # noqa: RUF009 (as the others, whose types ruff knows)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hparams", dict(self.hparams or {}))
        object.__setattr__(self, "track", tuple(self.track))
        object.__setattr__(self, "balance", "" if self.balance in UNCHANGED else self.balance)
        object.__setattr__(self, "class_weights", tuple(sorted(dict(self.class_weights).items())))
        for name in ("average", "freeze"):
            object.__setattr__(self, name, "" if getattr(self, name) == NONE else getattr(self, name))
        if self.network:
            object.__setattr__(self, "network", full_name(self.network))

    def describe(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) != one.default or not one.metadata.get("added")
        }

    def changed(self, **changes: Unpack[TrainingKeywords]) -> "TrainingOptions":
        return replace(self, **changes) if changes else self  # type: ignore[arg-type]


DEFAULTS = TrainingOptions()
