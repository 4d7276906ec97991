"""Plans: the arguments of a search, from which its runs follow. A sweep's folder keeps its plans, not lists of runs."""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from domainwise import files, plugins
from domainwise.algorithms import ALGORITHMS
from domainwise.data import Dataset, find_dataset
from domainwise.errors import UserError, unknown
from domainwise.nets.weights import planned
from domainwise.paper.spaces import paper_space
from domainwise.protocol.spaces import HParams, LogUniform, Parameter, Value, override
from domainwise.protocol.spaces import draw as draw_values
from domainwise.runs import Run, search_space

SETTINGS = ("multi", "single")
SPACES = ("domainbed", "paper")


@dataclass(frozen=True)
class Plan:
    """A search: every algorithm, draw and trial, for every way the setting divides the domains.

    multi     leave each domain out in turn; with `pairs` also every two, for leave-one-domain-out selection
    single    train on each domain in turn, test on all others

    A dataset with its own validation and test domains (NICO) is divided so: multi trains on all the rest together,
    single on each of the rest. Draw 0 is the defaults. `ranges` replaces search ranges by exponents of ten.
    """

    dataset: str
    algorithms: tuple[str, ...]
    draws: int = 20
    trials: int = 3
    setting: str = "multi"
    space: str = "domainbed"
    test_domains: tuple[str, ...] = ()
    pairs: bool = False
    steps: int | None = None
    evaluate_every: int | None = None
    network: str | None = None
    seed: int = 0
    precision: str = "fp32"
    hparams: Mapping[str, Value] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    variant: str = ""
    weights: str = ""
    full_curves: bool = False
    image_size: int | None = None
    augmentation: str | None = None
    track: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        data = self._data
        object.__setattr__(self, "dataset", data.name)
        for name in self.algorithms:
            ALGORITHMS.find(name)
        for kind, value, known in (("setting", self.setting, SETTINGS), ("space", self.space, SPACES)):
            if value not in known:
                raise unknown(kind, value, known)
        if not self.algorithms:
            raise UserError(f"name at least one algorithm, e.g. --algorithms ERM,DAT (known: {', '.join(ALGORITHMS)})")
        for kind, number in (("hparams", self.draws), ("trials", self.trials)):
            if number < 1:
                raise UserError(f"--{kind} must be at least 1, not {number}")
        ranges = {name: (float(low), float(high)) for name, (low, high) in self.ranges.items()}
        object.__setattr__(self, "ranges", ranges)
        legal = {name for algorithm in self.algorithms for name in ALGORITHMS.find(algorithm).space}
        for name in self.hparams:
            if name not in legal:
                raise unknown(f"hyper-parameter of {', '.join(self.algorithms)}", name, legal)
        for domain in self.test_domains:
            if data.domain(domain) not in data.testable:
                raise unknown(f"test domain of {data.title}", domain, data.testable)
        data.sized(self.image_size)
        object.__setattr__(self, "weights", planned(self.network or data.network, self.weights))

    @cached_property
    def _data(self) -> Dataset:
        return find_dataset(self.dataset).suited(self.network)

    def runs(self) -> list[Run]:
        """Draw by draw, each with all trials: an interrupted plan has compared everything on the draws it finished."""
        templates = {
            algorithm: [self._template(algorithm, train, test) for train, test in self._divisions]
            for algorithm in self.algorithms
        }
        runs = []
        for draw in range(self.draws):
            for trial in range(self.trials):
                values = {algorithm: self._values(algorithm, draw, trial) for algorithm in self.algorithms}
                for i in range(len(self._divisions)):
                    for algorithm, by_division in templates.items():
                        run = replace(by_division[i], hparams=values[algorithm], draw=draw, trial=trial)
                        runs.append(run)
        return runs

    @cached_property
    def _divisions(self) -> list[tuple[tuple[str, ...] | None, tuple[str, ...]]]:
        """(training domains or None for all others, unseen domains)."""
        data = self._data
        chosen = tuple(data.domain(domain) for domain in self.test_domains) or data.testable
        trainable = [domain for domain in data.domains if domain not in (*data.validation, *data.unseen)]
        if self.setting == "single":
            return [((source,), tuple(d for d in chosen if d != source)) for source in trainable if (source,) != chosen]
        if data.unseen:
            return [(None, chosen)]
        pairs = [pair for pair in combinations(data.testable, 2) if set(pair) & set(chosen)] if self.pairs else []
        return [(None, (domain,)) for domain in chosen] + [(None, pair) for pair in pairs]

    def _values(self, algorithm: str, draw: int, trial: int) -> HParams:
        """The hyper-parameters of one draw; those the user fixed apply to the algorithms that have them."""
        legal = search_space(algorithm, self._data.scale)
        fixed = {name: value for name, value in self.hparams.items() if name in legal}
        return override(legal, draw_values({**legal, **self._space(algorithm)}, draw, trial), fixed, algorithm)

    def _template(self, algorithm: str, train: Sequence[str] | None, test: Sequence[str]) -> Run:
        """The first run of one algorithm and division, checked; the others differ in draw, trial and their values."""
        return Run.plan(
            self._data,
            algorithm,
            test,
            train_domains=train,
            network=self.network,
            steps=self.steps,
            evaluate_every=self.evaluate_every,
            seed=self.seed,
            precision=self.precision,
            setting=self.setting,
            variant=self.variant or ("paper" if self.space == "paper" else ""),
            weights=self.weights,
            full_curves=self.full_curves,
            image_size=self.image_size,
            augmentation=self.augmentation,
            track=self.track,
        )

    def _space(self, algorithm: str) -> dict[str, Parameter]:
        """What this plan searches differently from the algorithm's own space."""
        space = paper_space(algorithm, self.dataset, self.setting) if self.space == "paper" else {}
        own = ALGORITHMS.find(algorithm).space
        for name, (low, high) in self.ranges.items():
            if name in own:
                space[name] = LogUniform(low, high, default=10 ** ((low + high) / 2))
        return space

    def describe(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def id(self) -> str:
        text = json.dumps(self.describe(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def save(self, folder: Path) -> None:
        """Leaves the plan in the sweep's folder, for status and tables."""
        plans = files.writable_folder(folder) / "plans"
        plans.mkdir(exist_ok=True)
        with files.atomic(plans / f"{self.id}.json") as file:
            file.write(json.dumps(self.describe(), indent=1).encode())

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> "Plan":
        tuples = {name: tuple(description[name]) for name in ("algorithms", "test_domains", "track")}
        return cls(**{**description, **tuples})


def saved_plans(folder: Path) -> Iterator[Plan]:
    """The plans a sweep's folder holds."""
    for path in sorted((folder / "plans").glob("*.json")):
        try:
            yield Plan.from_description(json.loads(path.read_text()))
        except UserError:
            if forgotten := [name for name in plugins.remembered(folder) if name not in plugins.files()]:
                options = " ".join(f"--plugin {shlex.quote(name)}" for name in forgotten)
                raise UserError(f"{folder} was made with code of your own: give {options} here too") from None
            raise
        except (ValueError, TypeError, KeyError, AttributeError):
            raise UserError(
                f"{path} is not a plan of this version: delete it, or run the sweep's command again"
            ) from None


def planned_runs(plans: Sequence[Plan]) -> list[Run]:
    """The runs of several plans, each once, dataset after dataset and within one draw by draw over all its plans."""
    runs = list({run.id: run for plan in plans for run in plan.runs()}.values())
    place = {dataset: i for i, dataset in enumerate(dict.fromkeys(run.dataset for run in runs))}
    return sorted(runs, key=lambda run: (place[run.dataset], run.draw, run.trial))
