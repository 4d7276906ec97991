"""Planning a sweep: a set of runs. A sweep's folder keeps its plans, and beside each the list of its runs.

plans/<id>.json            the Plan
plans/<id>.runs.json.gz    the description of each of its runs: they can be read without importing any algorithm
"""

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Unpack

from domainwise.algorithms import ALGORITHMS
from domainwise.core import files, plugins
from domainwise.core.compressed import unpacked
from domainwise.core.errors import Unsuited, UserError, unknown
from domainwise.core.parsing import FilePath, Range, check, parse, parse_any, read_file
from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.data.find import find_dataset
from domainwise.nets import NETWORKS
from domainwise.nets.weights import for_network, planned
from domainwise.protocol import limits, spaces
from domainwise.protocol.dataset_names import FOLDER
from domainwise.protocol.options import DEFAULTS, TrainingKeywords, TrainingOptions
from domainwise.protocol.runs import Run, identity
from domainwise.protocol.spaces import HParams, LogUniform
from domainwise.sweeps.plan_run import plan_run, search_space
from domainwise.sweeps.spaces import RECENT_NETWORKS, mild_space, paper_space, recent_space

SETTINGS = ("multi", "single")
SPACES = ("domainbed", "domainbed-2024", "paper", "soup")
VARIANTS = {"domainbed-2024": "2024", "paper": "paper", "soup": "mild"}
"""Names of the searches in other spaces than DomainBed's."""
SEARCHES = ("draws", "candidates")
ADVICE = "run the sweep's command again"


@dataclass(frozen=True)
class Plan:
    """A search: every algorithm, set of hyper-parameter values and trial, for every way of dividing the domains.

    setting "multi"       leave each domain out in turn; with `pairs` also every two, for leave-one-domain-out selection
                          of the algorithms that can train on the rest
    setting "single"      train on each domain in turn, test on all others

    search "draws"        DomainBed's: every trial of a draw has its own values; `test_domains` are left out in turn
    search "candidates"   all trials of a candidate share its values, so that the candidate can be chosen;
                          `test_domains` are kept out of everything, each of the other domains is left out in turn

    A dataset with its own validation and test domains (NICO) keeps those roles: multi trains on all the rest together,
    single on each of the rest. Draw 0, or candidate 0, is the defaults. In the space "soup" the draws differ mildly and
    share their start, so that their weights can be averaged; "domainbed-2024" has DomainBed's newer defaults. `ranges`
    replaces search ranges by exponents of ten. The constructor stores; `plan_sweep` checks what a user asks for.
    """

    dataset: FilePath
    algorithms: tuple[str, ...]
    draws: Annotated[int, Range(1, 10_000)] = 20
    trials: Annotated[int, Range(1, 10_000)] = 3
    setting: str = "multi"
    space: str = "domainbed"
    test_domains: tuple[str, ...] = ()
    pairs: bool = False
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    variant: str = ""
    search: str = "draws"
    options: TrainingOptions = DEFAULTS

    def __post_init__(self) -> None:
        ranges = {name: (float(low), float(high)) for name, (low, high) in self.ranges.items()}
        object.__setattr__(self, "algorithms", tuple(self.algorithms))
        object.__setattr__(self, "test_domains", tuple(self.test_domains))
        object.__setattr__(self, "ranges", ranges)

    def runs(self) -> list[Run]:
        """In the order in which an interrupted search has compared all algorithms on what it finished.

        Draws come one after the other, each with all its trials. Of candidates, each has one trial before any has two.
        """
        return list(self._runs)

    @cached_property
    def _runs(self) -> Sequence[Run]:
        firsts = {algorithm: self._firsts(algorithm) for algorithm in self.algorithms}
        sizes = {name: {len(run.train_domains) for run in runs if run is not None} for name, runs in firsts.items()}
        cells = [(draw, trial) for draw in range(self.draws) for trial in range(self.trials)]
        if self.search == "candidates":
            cells.sort(key=lambda cell: cell[1])
        runs = []
        for draw, trial in cells:
            values = {
                (name, domains): self._values(name, domains, draw, trial) for name in firsts for domains in sizes[name]
            }
            for of_division in zip(*firsts.values(), strict=True):
                for first in of_division:
                    if first is not None:
                        hparams = values[first.algorithm, len(first.train_domains)]
                        runs.append(replace(first, hparams=hparams, draw=draw, trial=trial))
        return runs

    @property
    def unsuited(self) -> dict[str, str]:
        """{algorithm: why it cannot be trained so}; without these algorithms the plan has runs."""
        reasons = {}
        for algorithm in self.algorithms:
            try:
                self._firsts(algorithm)
            except Unsuited as reason:
                reasons[algorithm] = str(reason)
        return reasons

    @cached_property
    def _data(self) -> Dataset:
        return for_network(find_dataset(self.dataset), self.options.network)

    def _divisions(self) -> list[tuple[tuple[str, ...] | None, tuple[str, ...]]]:
        """(training domains or None for all others, unseen domains)."""
        data = self._data
        named = tuple(data.domain(domain) for domain in self.test_domains)
        trainable = [domain for domain in data.domains if domain not in (*data.validation, *data.unseen)]
        if self.search == "candidates":
            searched = [domain for domain in trainable if domain not in named]
            return [(tuple(d for d in searched if d != domain), (domain,)) for domain in searched]
        unseen = named or data.testable
        if self.setting == "single":
            return [((source,), tuple(d for d in unseen if d != source)) for source in trainable if (source,) != unseen]
        if data.unseen:
            return [(None, unseen)]
        pairs = [pair for pair in combinations(data.testable, 2) if set(pair) & set(unseen)] if self.pairs else []
        return [(None, (domain,)) for domain in unseen] + [(None, pair) for pair in pairs]

    @property
    def without_pairs(self) -> tuple[str, ...]:
        """The algorithms that cannot train on what is left when two domains are left out."""
        if not self.pairs or not any(self._is_pair(test) for _, test in self._divisions()):
            return ()
        left = len(self._data.domains) - len(self._data.validation) - 2
        return tuple(name for name in self.algorithms if ALGORITHMS[name].needs_domains > left)

    def _is_pair(self, test: Sequence[str]) -> bool:
        """Whether two domains are left out only to help select others."""
        return self.pairs and self.setting == "multi" and len(test) == 2 and not self._data.unseen

    def _firsts(self, algorithm: str) -> list[Run | None]:
        """The first run of every division; None for the pairs that it cannot train on."""
        without = algorithm in self.without_pairs
        return [
            None if without and self._is_pair(test) else self._first(algorithm, train, test)
            for train, test in self._divisions()
        ]

    def _first(self, algorithm: str, train: Sequence[str] | None, test: Sequence[str]) -> Run:
        """The first run of one algorithm and division, checked; the others differ in draw, trial and their values."""
        return plan_run(
            self._data,
            algorithm,
            test,
            self._options(algorithm),
            hparams=self._fixed(algorithm),
            train_domains=train,
            setting=self.setting,
            variant=self.variant or VARIANTS.get(self.space, ""),
        )

    def _options(self, algorithm: str) -> TrainingOptions:
        """In the space "soup" all draws have one start: of pre-trained features with one linear probe on them.

        On random features a probe fits the training domains alone. Algorithms that replace layers cannot have one.
        """
        if self.space != "soup":
            return self.options
        probed = self.options.weights and not ALGORITHMS[algorithm].replaces_layers
        return self.options.changed(shared_start=True, start=self.options.start or ("probe" if probed else ""))

    def _fixed(self, algorithm: str) -> HParams:
        """The hyper-parameters that the user fixed, if the algorithm has them."""
        legal = search_space(algorithm, self._data.scale)
        return {name: value for name, value in self.options.hparams.items() if name in legal}

    def _values(self, algorithm: str, domains: int, draw: int, trial: int) -> HParams:
        """The hyper-parameters of one draw, to train on so many domains.

        Those the user fixed apply to the algorithms that have them.
        """
        legal = search_space(algorithm, self._data.scale)
        space = dict(legal)
        if self.space == "paper":
            space |= paper_space(algorithm, self.dataset, self.setting)
        if self.space == "domainbed-2024":
            space |= recent_space(algorithm, domains)
        if self.space == "soup":
            space = mild_space(legal)
        for name, (low, high) in self.ranges.items():
            if name in legal:
                space[name] = LogUniform(low, high, default=10 ** ((low + high) / 2))
        values = spaces.draw(space, draw, 0 if self.search == "candidates" else trial)
        return spaces.override(legal, values, self._fixed(algorithm), algorithm)

    def describe(self) -> dict[str, Any]:
        """As plain JSON values, the options among them; the search is left out where it is DomainBed's."""
        described = asdict(self)
        del described["options"]
        if self.search == "draws":
            del described["search"]
        return described | self.options.describe()

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> "Plan":
        """Stores what a file says, whose types are checked; imports no algorithm."""
        return cls.parse(description, "a plan", "plan it again")

    @classmethod
    def parse(cls, values: Any, where: object, advice: str) -> "Plan":
        """The plan that JSON values describe; `where` says where they come from."""
        values = check(values, dict[str, Any], where, advice)
        shared = {one.name: values[one.name] for one in fields(TrainingOptions) if one.name in values}
        search = {name: value for name, value in values.items() if name not in shared}
        return check(search | {"options": shared}, cls, where, advice)

    @property
    def id(self) -> str:
        return _hash(self.describe())

    def save(self, folder: Path) -> None:
        """Leaves the plan and the list of its runs in the sweep's folder, for status, tables and publishing."""
        plans = files.writable_folder(folder) / "plans"
        plans.mkdir(exist_ok=True)
        runs = {"plan": self.id, "runs": [run.describe() for run in self.runs()]}
        packed = gzip.compress(json.dumps(runs, separators=(",", ":")).encode(), mtime=0)
        files.write(_runs_file(plans, self), packed)
        files.write(plans / f"{self.id}.json", json.dumps(self.describe(), indent=1))


def plan_sweep(
    dataset: str,
    algorithms: Sequence[str],
    options: TrainingOptions = DEFAULTS,
    *,
    draws: int = 20,
    trials: int = 3,
    setting: str = "multi",
    space: str = "domainbed",
    test_domains: Sequence[str] = (),
    pairs: bool = False,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    variant: str = "",
    search: str = "draws",
    **changes: Unpack[TrainingKeywords],
) -> Plan:
    """A checked Plan; `changes` are fields of the options."""
    options = options.changed(**changes)
    data = for_network(find_dataset(dataset), options.network)
    legal = {name for algorithm in algorithms for name in ALGORITHMS[algorithm].space}
    for kind, value, known in (("setting", setting, SETTINGS), ("space", space, SPACES), ("search", search, SEARCHES)):
        if value not in known:
            raise unknown(kind, value, known)
    if not algorithms:
        names = ", ".join(ALGORITHMS)
        raise UserError(f"name at least one algorithm, e.g. ERM and DAT (known: {names})", argument="algorithms")
    for kind, number, argument in ((search, draws, "hparams"), ("trials", trials, "trials")):
        limits.check(kind, number, 1, limits.RUNS, argument)
    if (runs := len(algorithms) * draws * trials * len(data.domains)) > limits.RUNS:
        raise UserError(
            f"{runs:,} runs are more than {limits.RUNS:,}: plan fewer {search} or trials", argument="hparams"
        )
    for name in options.hparams:
        if name not in legal:
            raise unknown(f"hyper-parameter of {', '.join(algorithms)}", name, legal)
    named = [data.domain(domain) for domain in test_domains]
    if search == "candidates":
        if len(set(algorithms)) < len(algorithms):
            raise UserError(f"an algorithm is named twice in {', '.join(algorithms)}")
        if len(set(data.domains) - {*named, *data.validation, *data.unseen}) < 2:
            raise UserError(f"{data.title}: leaving one domain out in turn needs at least 2 domains")
    elif wrong := [domain for domain in named if domain not in data.testable]:
        raise unknown(f"test domain of {data.title}", wrong[0], data.testable)
    data.check_image_size(options.image_size)
    if space == "domainbed-2024" and options.network is None and data.network in RECENT_NETWORKS:
        options = replace(options, network=RECENT_NETWORKS[data.network])
    return Plan(
        data.name,
        tuple(algorithms),
        draws,
        trials,
        setting,
        space,
        tuple(test_domains),
        pairs,
        ranges or {},
        variant,
        search,
        replace(options, weights=planned(options.network or data.network, options.weights)),
    )


def saved_plans(folder: Path, damaged: list[str] | None = None) -> Iterator[Plan]:
    """The plans a sweep's folder holds, with their runs.

    One that cannot be read is an error, or is skipped and its error added to `damaged`.
    """
    files.complete_replacement(folder)
    for path in sorted((folder / "plans").glob("*.json")):
        try:
            plan = read_plan(path)
        except UserError as error:
            if damaged is None:
                raise
            damaged.append(str(error))
            continue
        _check_names(plan, folder)
        runs = _read_runs(plan, path.parent)
        if runs is not None:
            vars(plan)["_runs"] = runs  # in place of expanding the plan, which imports its algorithms and torch
        yield plan


def read_plan(path: Path) -> Plan:
    """The plan in a file, whose name is the hash of its content."""
    advice = "delete it, or run the sweep's command again"
    values = parse_any(read_file(path, advice), path, advice)
    plan = Plan.parse(values, path, advice)
    if _hash(values) != path.stem:
        raise UserError(f"{path} is damaged or was changed by hand (its name is not that of its content): {advice}")
    return plan


def _hash(description: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:12]


def _runs_file(plans: Path, plan: Plan) -> Path:
    return plans / f"{plan.id}.runs.json.gz"


def _read_runs(plan: Plan, plans: Path) -> list[Run] | None:
    """None where the list is missing (earlier versions kept none), damaged (gzip has a checksum) or another plan's."""
    descriptions = _descriptions(plan, plans)
    try:
        return None if descriptions is None else [_listed(plan, one) for one in descriptions]
    except UserError:
        return None


def missing_runs(plan: Plan, plans: Path, there: Set[str]) -> list[Run]:
    """The runs of a saved plan whose identities are not among those that are there; none where it has no list.

    The others, of which there may be thousands, are not checked.
    """
    try:
        return [_listed(plan, one) for one in _descriptions(plan, plans) or () if identity(one) not in there]
    except UserError:
        return []


def _descriptions(plan: Plan, plans: Path) -> list[dict[str, Any]] | None:
    path = _runs_file(plans, plan)
    try:
        saved = parse(unpacked(path, ADVICE), _RunList, path, ADVICE)
    except (FileNotFoundError, UserError):
        return None
    return saved.runs if saved.plan == plan.id else None


def _listed(plan: Plan, description: dict[str, Any]) -> Run:
    return Run.from_description(description, f"the runs of plan {plan.id}", ADVICE)


@dataclass(frozen=True)
class _RunList:
    """The content of <id>.runs.json.gz."""

    plan: str
    runs: list[dict[str, Any]]


def _check_names(plan: Plan, folder: Path) -> None:
    """Plans that name things of the user's need the plugins that they were made with."""
    networks = [plan.options.network] if plan.options.network else []
    datasets = [] if FOLDER.fullmatch(plan.dataset) else [plan.dataset]
    for registry, names in ((ALGORITHMS, plan.algorithms), (NETWORKS, networks), (DATASETS, datasets)):
        for name in names:
            if name in registry:
                continue
            if missing := [file for file in plugins.saved_names(folder) if file not in plugins.files()]:
                raise UserError(
                    f"{folder} was made with plugins; load them here too: {', '.join(missing)}", argument="plugin"
                )
            raise unknown(registry.kind, name, registry)


def planned_runs(plans: Sequence[Plan]) -> list[Run]:
    """The runs of several plans, each once, dataset after dataset and within one draw by draw over all its plans."""
    runs = list({run.id: run for plan in plans for run in plan.runs()}.values())
    position = {dataset: i for i, dataset in enumerate(dict.fromkeys(run.dataset for run in runs))}
    return sorted(runs, key=lambda run: (position[run.dataset], run.draw, run.trial))
