"""A model made of several finished runs: what it is made of, its accuracies, its record and its model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domainwise.algorithms.base import Algorithm
from domainwise.core.phrasing import counted
from domainwise.core.provenance import provenance
from domainwise.core.table import Table, Tabular
from domainwise.data.environments import Environments
from domainwise.engine.assemble import EnsembleAlgorithm
from domainwise.engine.evaluation import Split
from domainwise.models.fit import make_model, training_summary
from domainwise.models.model import Model
from domainwise.models.unseen import LAST
from domainwise.protocol.records import Record, SplitScores, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.saved_weights import RULE, saved_weights
from domainwise.protocol.selection import Curve, Method, training_domain_score


@dataclass(frozen=True)
class Member:
    """A run that was offered: of which step its weights are, its accuracies there, and whether it is used."""

    run: Run
    step: int
    selected: bool
    validation: float | None
    """The mean accuracy on held-out samples of the training domains."""
    unseen: float | None
    weights: str
    """In words; `kind`: in two of them."""
    kind: str
    used: bool = True

    @classmethod
    def of(cls, folder: RunFolder, curve: Curve) -> "Member":
        weights = saved_weights(folder)
        at = curve.steps.index(weights.step) if weights.step in curve.steps else -1
        accuracy = {part: float(values[at]) for part, values in curve.accuracy.items()} if curve.steps else {}
        validation = training_domain_score(folder.run, accuracy)
        unseen = _unseen(folder.run, accuracy)
        return cls(folder.run, weights.step, weights.selected, validation, unseen, str(weights), weights.kind)

    def as_json(self) -> dict[str, Any]:
        facts = {"run": self.run.id, "draw": self.run.draw, "step": self.step, "selected": self.selected}
        return facts | {"validation": self.validation, "used": self.used, "hparams": self.run.hparams}


@dataclass(frozen=True, repr=False)
class Combined:
    """A soup or an ensemble in memory, and its accuracies."""

    run: Run
    members: tuple[Member, ...]
    """All runs that are done; those used are marked."""
    algorithm: Algorithm
    environments: Environments
    scores: Mapping[Split, SplitScores]
    seconds: float
    """How long the training of all runs took."""

    @property
    def used(self) -> list[Member]:
        return [member for member in self.members if member.used]

    @property
    def accuracy(self) -> dict[Split, float]:
        return {part: one.accuracy for part, one in self.scores.items()}

    @property
    def validation(self) -> float | None:
        """The mean accuracy on held-out samples of the training domains."""
        return training_domain_score(self.run, self.accuracy)

    @property
    def unseen(self) -> float | None:
        """The mean accuracy on the unseen domains."""
        return _unseen(self.run, self.accuracy)

    @property
    def best(self) -> Member:
        """The run that training-domain validation prefers."""
        return max(self.members, key=lambda member: member.validation or 0.0)

    def records(self) -> list[Record]:
        """One evaluation, at the last step of the runs."""
        step, seconds = self.run.steps - 1, round(self.seconds, 3)
        return [Record.of(self.run.id, step, part, score, seconds) for part, score in self.scores.items()]

    def record(self, folder: Path) -> Path:
        """Writes its description and its records beside those of its runs."""
        target = RunFolder(folder, self.run)
        target.create()
        made = provenance(self.environments.device) | {"threads": self.run.threads}
        reason = f"{self.words} ({', '.join(member.run.id for member in self.used)})"
        status = Status(self.run.id, self.run.steps - 1, "done", reason, **made)
        target.replace_records([*self.records(), status])
        return target.path

    @property
    def words(self) -> str:
        """What it is made of."""
        used, offered = len(self.used), len(self.run.members)
        number = counted(used, "run") if used == offered else f"{used} of {counted(offered, 'run')}"
        if self.run.combination == "ensemble":
            return f"ensemble: mean probabilities of {number}"
        return f"{self.run.combination}: mean weights of {number} that share their start"

    def model(self, device: str = "auto") -> Model:
        """As a model to predict with, save and export."""
        rule = RULE if all(member.selected for member in self.used) else LAST
        made = {
            "combination": self.run.combination,
            "words": self.words,
            "runs": [member.as_json() for member in self.members],
        }
        summary = training_summary(self.run, self.environments, self.records(), self.seconds, rule) | {"made_of": made}
        ensemble = isinstance(self.algorithm, EnsembleAlgorithm)
        hparams = tuple(member.run.hparams for member in self.used) if ensemble else ()
        return make_model(self.run, self.environments, self.algorithm.state_dict(), summary, device, hparams)


@dataclass(frozen=True, repr=False)
class Combinations(Tabular):
    """Soups or ensembles beside the run that training-domain validation prefers."""

    made: tuple[Combined, ...]

    def as_table(self) -> Table:
        best, combined = (f"{name}: validation" for name in ("best run", "combined"))
        headings = ("method", "unseen domain", "trial", "runs", best, "unseen", combined, "unseen")
        rows = [
            (
                str(Method(one.run.algorithm, one.run.variant)),
                "+".join(one.run.test_domains) or "none",
                str(one.run.trial),
                f"{len(one.used)} of {len(one.run.members)}",
                *map(_percent, (one.best.validation, one.best.unseen, one.validation, one.unseen)),
            )
            for one in self.made
        ]
        names = ", ".join(dict.fromkeys(one.run.combination for one in self.made))
        kinds = ", ".join(dict.fromkeys(member.kind for one in self.made for member in one.used))
        caption = "validation: held-out samples of the training domains, by which the best run is selected"
        return Table(headings, rows, f"{names}: accuracy, per cent", f"{caption}; weights of a run: {kinds}", labels=2)

    def to_records(self) -> list[dict[str, Any]]:
        return [
            {
                "run": one.run.id,
                "method": str(Method.of(one.run)),
                "unseen": "+".join(one.run.test_domains),
                "trial": one.run.trial,
                "used": [member.run.id for member in one.used],
                "weights": [member.weights for member in one.used],
                "best_run": one.best.run.id,
                "best_validation": one.best.validation,
                "best_unseen": one.best.unseen,
                "validation": one.validation,
                "accuracy": one.unseen,
            }
            for one in self.made
        ]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _unseen(run: Run, accuracy: Mapping[Split, float]) -> float | None:
    values = [accuracy[domain, "in"] for domain in run.test_domains if (domain, "in") in accuracy]
    return float(np.mean(values)) if values else None
