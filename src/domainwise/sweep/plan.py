"""Plans: the arguments of a search, from which its runs follow. A sweep's folder keeps its plans, not lists of runs."""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from domainwise.algorithms import ALGORITHMS
from domainwise.core import files, plugins
from domainwise.core.errors import UserError, unknown
from domainwise.data.augment import check_augmentation
from domainwise.data.catalogue import Dataset
from domainwise.data.find import find_dataset
from domainwise.nets import NETWORKS, pretrained_weights
from domainwise.nets.weights import planned
from domainwise.protocol import spaces
from domainwise.protocol.runs import PRECISIONS, TRACKABLE, Run
from domainwise.protocol.spaces import HParams, LogUniform, Parameter, Scale, Value, override
from domainwise.protocol.spaces import draw as draw_values
from domainwise.sweep.spaces import paper_space

SETTINGS = ("multi", "single")
SPACES = ("domainbed", "paper")


def plan_run(
    dataset: str | Dataset,
    algorithm: str,
    test_domains: Sequence[str | int] | str | int,
    *,
    train_domains: Sequence[str | int] | str | int | None = None,
    hparams: Mapping[str, Value] | None = None,
    network: str | None = None,
    steps: int | None = None,
    evaluate_every: int | None = None,
    draw: int = 0,
    trial: int = 0,
    seed: int = 0,
    precision: str = "fp32",
    track: Sequence[str] = (),
    setting: str = "multi",
    variant: str = "",
    weights: str = "",
    augmentation: str | None = None,
    image_size: int | None = None,
    full_curves: bool = False,
) -> Run:
    """A checked Run: domains by name or number, training on all others, defaults from dataset and algorithm.

    Without a test domain it trains on every domain: to ship a model, not to judge one. `weights` is a file;
    networks that start from published weights need none.
    """
    data = (dataset if isinstance(dataset, Dataset) else find_dataset(dataset)).for_network(network)
    method = ALGORITHMS[algorithm]
    test = _domains(data, test_domains)
    rest = [domain for domain in data.domains if domain not in (*test, *data.validation, *data.unseen)]
    train = _domains(data, rest if train_domains is None else train_domains)
    validation = tuple(domain for domain in data.validation if domain not in (*test, *train))
    if both := set(train) & set(test):
        raise UserError(f"{data.title}: domain {sorted(both)[0]!r} cannot be both trained on and unseen")
    if len(train) < method.needs_domains:
        raise UserError(
            f"{algorithm} needs at least {method.needs_domains} training domains; "
            f"{len(train)} left of {data.title} when {', '.join(test) or 'none'} is unseen"
        )
    if len(set(train)) < len(train) or len(set(test)) < len(test):
        raise UserError(f"{data.title}: a domain is named twice in {', '.join((*train, *test))}")
    legal = search_space(algorithm, data.scale)
    values = spaces.override(legal, spaces.draw(legal, draw, trial), hparams or {}, algorithm)
    chosen = network or data.network
    NETWORKS[chosen]
    if pretrained_weights(chosen) and data.shape[0] != 3:
        channels = f"{data.name} has {data.shape[0]}" if len(data.shape) == 3 else f"{data.name} has no images"
        raise UserError(f"{chosen} starts from weights for 3 channels, but {channels}: choose another --network")
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    for name in track:
        if name not in TRACKABLE:
            raise unknown("thing to track", name, TRACKABLE)
    steps = data.steps if steps is None else steps
    evaluate_every = data.evaluate_every if evaluate_every is None else evaluate_every
    for name, number in (("steps", steps), ("evaluate_every", evaluate_every)):
        if number < 1:
            raise UserError(f"{name} must be at least 1, not {number}")
    return Run(
        data.name,
        algorithm,
        train,
        test,
        values,
        chosen,
        steps,
        evaluate_every,
        draw,
        trial,
        seed,
        precision,
        tuple(track),
        validation,
        data.held_out,
        setting,
        variant,
        planned(chosen, weights),
        check_augmentation(data.augmentation if augmentation is None else augmentation, data.shape, data.name),
        data.check_image_size(image_size),
        full_curves,
    )


@cache
def search_space(algorithm: str, scale: Scale) -> dict[str, Parameter]:
    """The algorithm's own space at this scale."""
    return spaces.at_scale(ALGORITHMS[algorithm].space, scale)


def _domains(data: Dataset, keys: Sequence[str | int] | str | int) -> tuple[str, ...]:
    """Domains by name or number; one alone need not be in a list."""
    return tuple(data.domain(str(key)) for key in ([keys] if isinstance(keys, (str, int)) else keys))


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
            ALGORITHMS[name]
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
        legal = {name for algorithm in self.algorithms for name in ALGORITHMS[algorithm].space}
        for name in self.hparams:
            if name not in legal:
                raise unknown(f"hyper-parameter of {', '.join(self.algorithms)}", name, legal)
        for domain in self.test_domains:
            if data.domain(domain) not in data.testable:
                raise unknown(f"test domain of {data.title}", domain, data.testable)
        data.check_image_size(self.image_size)
        object.__setattr__(self, "weights", planned(self.network or data.network, self.weights))

    @cached_property
    def _data(self) -> Dataset:
        return find_dataset(self.dataset).for_network(self.network)

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
        return plan_run(
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
        own = ALGORITHMS[algorithm].space
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
