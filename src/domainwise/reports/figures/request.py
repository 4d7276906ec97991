"""The input and the output of a figure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from matplotlib.figure import Figure

from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.protocol.dataset_names import path_or_name, title
from domainwise.protocol.selection import Column, Curve
from domainwise.protocol.statistics import Scores
from domainwise.sweeps.accuracy_table import AccuracyTable, in_order
from domainwise.sweeps.commands import example_command
from domainwise.sweeps.tables import Group, table_of


@dataclass(frozen=True)
class Request:
    """The experiment to draw, or these algorithms of it, and the rule that chooses its points."""

    folder: Path
    group: Group
    rule: str
    algorithms: Sequence[str] = ()

    @cached_property
    def curves(self) -> tuple[Curve, ...]:
        wanted = set(self.algorithms)
        return tuple(curve for curve in self.group.curves if not wanted or curve.run.algorithm in wanted)

    @cached_property
    def dataset(self) -> str:
        """Its name in titles."""
        return title(self.group.experiment.dataset)

    def table(self, scores: Scores) -> AccuracyTable:
        """Of these selected scores of the experiment, by the rule."""
        return table_of(replace(self.group, curves=self.curves), scores, self.rule)

    def n(self, curves: Sequence[Curve]) -> str:
        """How many runs, and over what: for captions."""
        runs = [curve.run for curve in curves]
        unseen = {domain for run in runs for domain in run.test_domains}
        over = f"{counted(len({run.trial for run in runs}), 'trial')} x {counted(len(unseen), 'unseen domain')}"
        return f"{counted(len(runs), 'run')} ({over})"

    @cached_property
    def columns(self) -> list[Column]:
        """As in the experiment's table."""
        return in_order(self.group.experiment.dataset, replace(self.group, curves=self.curves).columns)


@dataclass(frozen=True)
class Drawing:
    """A figure without its title and caption, these two, and its findings in sentences."""

    figure: Figure
    title: str
    """A claim that the records support, or what is shown; the dataset's name is put before it."""
    caption: str
    """What dots, bars and bands are, how many runs they stand for, and how these were selected."""
    sentences: Sequence[str] = ()


class TooFew(UserError):
    """The folder lacks the runs that a figure needs; the message has a command with these options that makes them."""

    def __init__(self, request: Request, needed: str, command: str = "sweep", **options: str | int) -> None:
        dataset = request.group.experiment.dataset
        example = example_command(command, {"dataset": path_or_name(dataset), **options, "out": request.folder})
        of = f"{', '.join(request.algorithms)} on {title(dataset)}" if request.algorithms else title(dataset)
        super().__init__(f"{request.folder}: of {of}, this figure needs {needed}; e.g. {example}")
