"""The search of a practitioner: every candidate trained with each domain left out in turn, and judged on it.

A candidate is an algorithm with one draw of its hyper-parameters. It is judged by domains it never saw, not by samples
like those it was trained on, because that is how it will be used.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError, unknown
from domainwise.data.catalogue import Dataset
from domainwise.protocol.records import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve
from domainwise.protocol.spaces import HParams, Value
from domainwise.sweep.collection import read_curve
from domainwise.sweep.events import Event, Settings
from domainwise.sweep.local import execute
from domainwise.sweep.plan import plan_run


@dataclass(frozen=True)
class Search:
    """Which runs there are: algorithms x draws x trials x domains left out. All trials of a draw share its values."""

    dataset: Dataset
    algorithms: tuple[str, ...]
    draws: int = 4
    trials: int = 1
    test_domains: tuple[str, ...] = ()  # kept out of everything
    hparams: Mapping[str, Value] | None = None
    steps: int | None = None
    evaluate_every: int | None = None
    network: str | None = None
    image_size: int | None = None
    augmentation: str | None = None
    weights: str = ""
    precision: str = "fp32"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.algorithms:
            raise UserError(f"name at least one algorithm of {', '.join(ALGORITHMS)}")
        if len(set(self.algorithms)) < len(self.algorithms):
            raise UserError(f"an algorithm is named twice in {', '.join(self.algorithms)}")
        for kind, number in (("draws", self.draws), ("trials", self.trials)):
            if number < 1:
                raise UserError(f"{kind} must be at least 1, not {number}")
        if len(self.domains) < 2:
            raise UserError(f"{self.dataset.title}: leaving one domain out in turn needs at least 2 domains")
        legal = {name for algorithm in self.algorithms for name in ALGORITHMS[algorithm].space}
        for name in self.hparams or {}:
            if name not in legal:
                raise unknown(f"hyper-parameter of {', '.join(self.algorithms)}", name, legal)

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """Those that are trained on and left out in turn."""
        data = self.dataset
        kept = {data.domain(domain) for domain in self.test_domains} | {*data.validation, *data.unseen}
        return tuple(domain for domain in data.domains if domain not in kept)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Trials first, then draws: an interrupted search has compared all algorithms on what it finished."""
        firsts = {
            (algorithm, draw, domain): self._first(algorithm, draw, domain)
            for draw in range(self.draws)
            for domain in self.domains
            for algorithm in self.algorithms
        }
        return tuple(replace(run, trial=trial) for trial in range(self.trials) for run in firsts.values())

    def _first(self, algorithm: str, draw: int, domain: str) -> Run:
        """The first trial's run; a hyper-parameter the user fixed applies to the algorithms that have it."""
        own = ALGORITHMS[algorithm].space
        return plan_run(
            self.dataset,
            algorithm,
            [domain],
            train_domains=[other for other in self.domains if other != domain],
            hparams={name: value for name, value in (self.hparams or {}).items() if name in own},
            draw=draw,
            steps=self.steps,
            evaluate_every=self.evaluate_every,
            network=self.network,
            image_size=self.image_size,
            augmentation=self.augmentation,
            weights=self.weights,
            precision=self.precision,
            seed=self.seed,
        )

    def execute(self, settings: Settings, workers: int | None = None) -> Generator[Event]:
        """Trains what is missing, several runs at once, telling what happens."""
        return execute(self.runs, settings, workers)

    def curves(self, out: Path) -> list[Curve]:
        """What the runs that ended well have recorded."""
        folders = [RunFolder(out, run) for run in self.runs]
        done = [folder for folder in folders if (status := folder.status()) is not None and status.status == "done"]
        return [read_curve(folder)[0] for folder in done]


@dataclass(frozen=True)
class Candidate:
    """An algorithm with values for its hyper-parameters and a number of steps, and how it did on domains left out."""

    algorithm: str
    draw: int
    hparams: HParams
    steps: int
    accuracy: float  # on the whole of the domain left out, mean over domains and trials
    domains: Mapping[str, float]


def candidates(search: Search, curves: Sequence[Curve]) -> list[Candidate]:
    """Every candidate all of whose runs ended well, at its best number of steps; the best first.

    Ties go to fewer steps, then to the defaults, then to the algorithm named first.
    """
    found = []
    for algorithm in search.algorithms:
        for draw in range(search.draws):
            own = [curve for curve in curves if (curve.run.algorithm, curve.run.draw) == (algorithm, draw)]
            if len(own) == search.trials * len(search.domains):
                found.append(_candidate(own))
    return sorted(found, key=lambda candidate: -candidate.accuracy)


def _candidate(curves: Sequence[Curve]) -> Candidate:
    steps = sorted(set.intersection(*(set(curve.steps) for curve in curves)))
    left_out: dict[str, list[list[float]]] = {}
    for curve in curves:
        (domain,) = curve.run.test_domains
        whole = dict(zip(curve.steps, _whole(curve, domain), strict=True))
        left_out.setdefault(domain, []).append([whole[step] for step in steps])
    by_domain = {domain: np.mean(trials, axis=0) for domain, trials in left_out.items()}
    mean = np.mean(list(by_domain.values()), axis=0)
    best = int(mean.argmax())
    run = curves[0].run
    domains = {domain: float(values[best]) for domain, values in by_domain.items()}
    return Candidate(run.algorithm, run.draw, run.hparams, steps[best] + 1, float(mean[best]), domains)


def _whole(curve: Curve, domain: str) -> list[float]:
    """The accuracy on both splits of a domain together, at every evaluation."""
    inside, outside = curve.accuracy[domain, "in"], curve.accuracy.get((domain, "out"))
    if outside is None:
        return list(inside)
    share = curve.run.held_out
    return list((1 - share) * inside + share * outside)
