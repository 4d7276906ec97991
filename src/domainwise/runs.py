"""A Run: the frozen description of one training, whose hash is its identity."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any

from domainwise.algorithms import ALGORITHMS
from domainwise.data import Dataset, find_dataset, title
from domainwise.data.augment import check_augmentation
from domainwise.data.environments import HELD_OUT
from domainwise.engine.devices import PRECISIONS
from domainwise.errors import UserError, unknown
from domainwise.nets import NETWORKS, PRETRAINED
from domainwise.nets.weights import planned
from domainwise.protocol import spaces
from domainwise.protocol.spaces import HParams, Parameter, Scale, Value

TRACKABLE = ("penalties",)
"""What a run may record besides accuracies, at every evaluation."""

FORMAT = 2
"""Raised when a Run's fields change meaning; part of its identity."""


@dataclass(frozen=True)
class Run:
    """Everything that decides a training's result. Make one with `Run.plan`, which fills in defaults and checks.

    A run of the setting "multi" belongs to a table of domains left out in turn, one of "single" to a table of training
    on one domain and testing on each other. `variant` names the search a run belongs to, where one algorithm is
    searched in several spaces. `weights` says what a pre-trained network starts from, as "file#fingerprint": the
    fingerprint (the first 16 digits of the file's SHA-256) is part of the run's identity, where the file lies is not.
    With `full_curves` every split is judged, not only those that selection rules look at.
    """

    dataset: str
    algorithm: str
    train_domains: tuple[str, ...]
    test_domains: tuple[str, ...]
    hparams: HParams
    network: str
    steps: int
    evaluate_every: int
    draw: int = 0
    trial: int = 0
    seed: int = 0
    precision: str = "fp32"
    track: tuple[str, ...] = ()
    validation_domains: tuple[str, ...] = ()
    held_out: float = HELD_OUT
    setting: str = "multi"
    variant: str = ""
    weights: str = ""
    augmentation: str = "none"
    image_size: int = 0
    full_curves: bool = False
    format: int = FORMAT

    @classmethod
    def plan(
        cls,
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
    ) -> "Run":
        """A checked Run: domains by name or number, training on all others, defaults from dataset and algorithm.

        Without a test domain it trains on every domain: to ship a model, not to judge one. `weights` is a file;
        networks that start from published weights need none.
        """
        data = (dataset if isinstance(dataset, Dataset) else find_dataset(dataset)).suited(network)
        method = ALGORITHMS.find(algorithm)
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
        NETWORKS.find(chosen)
        if chosen in PRETRAINED and data.shape[0] != 3:
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
        return cls(
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
            data.sized(image_size),
            full_curves,
        )

    def describe(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> "Run":
        if description.get("format") != FORMAT:
            raise UserError(f"a run of format {description.get('format')!r}; this version reads format {FORMAT}")
        lists = {
            name: tuple(description[name]) for name in ("train_domains", "test_domains", "validation_domains", "track")
        }
        return cls(**{**description, **lists})

    @cached_property
    def id(self) -> str:
        """The identity: equal for equal descriptions, in any process, on any machine."""
        described = self.describe() | {"weights": self.weights.rpartition("#")[2]}
        text = json.dumps(described, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def domains(self) -> tuple[str, ...]:
        """All whose samples it looks at."""
        return (*self.train_domains, *self.validation_domains, *self.test_domains)

    def held_out_of(self, domain: str) -> float:
        """The fraction of a domain that is its `out` split; a validation domain is judged whole."""
        return 0.0 if domain in self.validation_domains else self.held_out

    def evaluated_at(self, step: int) -> bool:
        """Whether the network is judged after this step: every `evaluate_every`th from the first, and the last."""
        return step % self.evaluate_every == 0 or step == self.steps - 1

    def __str__(self) -> str:
        unseen = "+".join(self.test_domains) or "none"
        return f"{self.algorithm} on {title(self.dataset)}, unseen {unseen}, trial {self.trial}"


@cache
def search_space(algorithm: str, scale: Scale) -> dict[str, Parameter]:
    """The algorithm's own space at this scale."""
    return spaces.at_scale(ALGORITHMS.find(algorithm).space, scale)


def _domains(data: Dataset, keys: Sequence[str | int] | str | int) -> tuple[str, ...]:
    """Domains by name or number; one alone need not be in a list."""
    return tuple(data.domain(str(key)) for key in ([keys] if isinstance(keys, (str, int)) else keys))
