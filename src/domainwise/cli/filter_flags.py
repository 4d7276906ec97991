"""The options that say which runs of a sweep are meant: declared once, for every command that reads a few of them."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from domainwise.cli import options
from domainwise.cli.training_flags import Command, in_place_of

if TYPE_CHECKING:
    from domainwise.analysis.run_choice import RunFilter
    from domainwise.models.combinable import RunsWanted


def _declaration(
    dataset: options.FilterDataset = None,
    algorithm: options.FilterAlgorithm = None,
    test_domain: options.FilterDomain = None,
    trial: options.FilterTrial = None,
) -> None:
    """A signature and nothing else: names, kinds, defaults and help of the options, in this order."""


DECLARED = inspect.signature(_declaration).parameters


def with_run_filter(command: Command) -> Command:
    """The command with the options that choose one run per method in place of its parameter `run_filter`."""
    return in_place_of("run_filter", _all_but("algorithm"), _run_filter, command)


def with_runs_wanted(command: Command) -> Command:
    """The command with the options that choose runs to combine in place of its parameter `wanted`."""
    return in_place_of("wanted", _all_but("dataset"), _runs_wanted, command)


def _all_but(left_out: str) -> dict[str, inspect.Parameter]:
    return {name: one for name, one in DECLARED.items() if name != left_out}


def _run_filter(values: Mapping[str, Any]) -> "RunFilter":
    from domainwise.analysis.run_choice import RunFilter

    return RunFilter(values["dataset"], values["test_domain"], values["trial"])


def _runs_wanted(values: Mapping[str, Any]) -> "RunsWanted":
    from domainwise.models.combinable import RunsWanted

    return RunsWanted(**values)
