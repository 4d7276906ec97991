"""The options that say how a model is trained: declared once, for every command that trains.

    @with_training_flags(without=("track",), average="sma")
    def compare(dataset: ..., training: TrainingFlags, device: ...) -> None:
        options = training.options(device, data_root, network)

The command shows and reads all of them in the place of its parameter `training`.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domainwise.cli import options
from domainwise.cli.output import errors_console, say

if TYPE_CHECKING:
    from domainwise.protocol.options import TrainingOptions
    from domainwise.protocol.runs import Run

Command = Callable[..., None]


def _declaration(
    hparam: options.FixedHparam = None,
    steps: options.Steps = None,
    evaluate_every: options.EvaluateEvery = None,
    network: options.Network = "auto",
    image_size: options.ImageSize = None,
    augmentation: options.Augmentation = None,
    weights: options.Weights = "",
    average: options.Average = "none",
    start: options.Start = "",
    freeze: options.Freeze = "none",
    train: options.Train = "",
    layer_decay: options.LayerDecay = 1.0,
    lr_schedule: options.LrSchedule = "constant",
    clip_gradient: options.ClipGradient = 0.0,
    early_stop: options.EarlyStop = 0,
    balance: options.Balance = "none",
    class_weight: options.ClassWeight = None,
    precision: options.Precision = "auto",
    threads: options.Threads = 1,
    seed: options.Seed = 0,
    full_curves: options.FullCurves = False,
    track: options.Track = None,
) -> None:
    """A signature and nothing else: names, kinds, defaults and help of the options, in this order."""


DECLARED = inspect.signature(_declaration).parameters


@dataclass(frozen=True)
class TrainingFlags:
    """The values of the options, by name."""

    values: Mapping[str, Any]

    @property
    def network(self) -> str:
        return str(self.values["network"])

    @property
    def weights(self) -> str:
        return str(self.values["weights"])

    @property
    def steps(self) -> int | None:
        return self.values["steps"]

    def options(self, device: str, data_root: Path | None, network: str | None, **further: Any) -> "TrainingOptions":
        """As runs record them, with the network that was chosen by them."""
        from domainwise.sweeps.plan_run import training_options

        values = {**self.values, "network": network, "track": self.values.get("track") or ()}
        hparams = options.parse_hparams(values.pop("hparam", None) or [])
        values["class_weights"] = options.parse_class_weights(values.pop("class_weight", None) or [])
        return training_options(device, data_root, **values, hparams=hparams, **further)


def with_training_flags(without: Collection[str] = (), **defaults: Any) -> Callable[[Command], Command]:
    """The command with the declared options, but for some, in place of its parameter `training`.

    `defaults` are other defaults than the declared ones.
    """

    def decorate(command: Command) -> Command:
        shared = {
            name: one.replace(default=defaults.get(name, one.default))
            for name, one in DECLARED.items()
            if name not in without
        }
        return in_place_of("training", shared, TrainingFlags, command)

    return decorate


def in_place_of(
    parameter: str,
    declared: Mapping[str, inspect.Parameter],
    make: Callable[[Mapping[str, Any]], Any],
    command: Command,
) -> Command:
    """The command with declared options in place of one parameter, which gets what is made of their values."""
    parameters: list[inspect.Parameter] = []
    for name, one in inspect.signature(command).parameters.items():
        parameters += declared.values() if name == parameter else [one]

    @wraps(command)
    def call(**values: Any) -> None:
        given = make({name: values.pop(name) for name in declared})
        command(**values, **{parameter: given})

    keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    call.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in keywords}
    return call


def note_erm_to_the_end(runs: "Iterable[Run]") -> None:
    """A note on every method that its runs are too short for."""
    from domainwise.sweeps.plan_run import erm_to_the_end

    for note in erm_to_the_end(runs):
        say(f"note: {note}", errors_console)
