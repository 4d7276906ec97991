"""What is asked of a figure, and what comes back."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from matplotlib.figure import Figure

from domainwise.core.errors import UserError
from domainwise.protocol.dataset_names import title
from domainwise.protocol.selection import Curve
from domainwise.protocol.statistics import column_of
from domainwise.sweep.tables import Group, in_order


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
    def columns(self) -> list[str]:
        """As in the experiment's table."""
        names = set()
        for curve in self.curves:
            source = curve.run.train_domains[0] if curve.run.setting == "single" else ""
            names |= {column_of(source, unseen) for unseen in curve.run.test_domains}
        return in_order(self.group.experiment.dataset, names)


@dataclass(frozen=True)
class Drawing:
    """A figure and what it says in words."""

    figure: Figure
    sentences: Sequence[str]


class TooFew(UserError):
    """The folder lacks the runs that a figure needs; says which command would make them."""

    def __init__(self, request: Request, needed: str, command: str) -> None:
        dataset = request.group.experiment.dataset
        name = shlex.quote(dataset.partition("#")[0])  # a folder of images goes by its path
        example = command.format(dataset=name, folder=request.folder)
        whose = f"{', '.join(request.algorithms)} on {title(dataset)}" if request.algorithms else title(dataset)
        super().__init__(f"{request.folder}: of {whose}, this figure needs {needed}; e.g. {example}")
