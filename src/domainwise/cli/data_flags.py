"""The options that name the data to train on: declared once, for every command that does.

    @with_data_flags()
    def compare(data: DataFlags, ..., training: TrainingFlags) -> None:
        dataset, network = data.choose(training, data_root)

The command shows them, and those that say how images are read, in the place of its parameter `data`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domainwise.cli import options, reading_flags
from domainwise.cli.training_flags import Command, TrainingFlags, in_place_of
from domainwise.protocol.reading import Reading

if TYPE_CHECKING:
    from domainwise.data.catalogue import Dataset


def _declaration(
    dataset: options.Dataset = None,
    data: options.DataFolder = None,
    skip_bad: options.SkipBad = False,
) -> None:
    """A signature and nothing else: names, kinds, defaults and help of the options, in this order."""


DECLARED = {**inspect.signature(_declaration).parameters, **reading_flags.DECLARED}


@dataclass(frozen=True)
class DataFlags:
    """A dataset by name or a folder of your own images, and how its images are read."""

    dataset: str | None
    folder: Path | None
    skip_bad: bool
    reading: Reading

    def choose(self, training: TrainingFlags, data_root: Path | None) -> "tuple[Dataset, str | None]":
        """The data and the network, which for a folder depends on the weights in the data root; None: the dataset's."""
        from domainwise.cli.data_options import choose_data_and_network

        return choose_data_and_network(self, training.network, training.weights, data_root)


def with_data_flags(dataset: Any = options.Dataset) -> Callable[[Command], Command]:
    """The command with the declared options in place of its parameter `data`; `dataset` may have another help."""
    declared = {**DECLARED, "dataset": DECLARED["dataset"].replace(annotation=dataset)}
    return lambda command: in_place_of("data", declared, _data, command)


def _data(values: Mapping[str, Any]) -> DataFlags:
    return DataFlags(values["dataset"], values["data"], values["skip_bad"], reading_flags.reading_of(values))
