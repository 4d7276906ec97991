"""Planning one run: a user's options become a checked description of one training."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import Unsuited, UserError, unknown
from domainwise.data.augmentations import check_augmentation
from domainwise.data.catalogue import Dataset
from domainwise.data.find import find_dataset
from domainwise.nets import NETWORKS, pretrained_weights
from domainwise.nets.weights import for_network, planned
from domainwise.protocol import limits, spaces
from domainwise.protocol.averages import check_average
from domainwise.protocol.balance import check_balance
from domainwise.protocol.network_names import is_hub
from domainwise.protocol.options import DEFAULTS, TrainingKeywords, TrainingOptions
from domainwise.protocol.recipe import check_recipe
from domainwise.protocol.runs import PRECISIONS, TRACKABLE, Run
from domainwise.protocol.spaces import Parameter, Scale

if TYPE_CHECKING:
    from domainwise.algorithms.base import Algorithm


def training_options(
    device: str = "auto", data_root: Path | None = None, **options: Unpack[TrainingKeywords]
) -> TrainingOptions:
    """A user's options as runs record them.

    The precision "auto", here the default, becomes that of the device; a file of weights becomes "file#fingerprint".
    """
    from domainwise.engine.devices import pick_precision

    made = DEFAULTS.changed(**options)
    precision = pick_precision(options.get("precision", "auto"), device)
    return replace(made, precision=precision, weights=planned(made.network or "", made.weights, data_root))


def plan_run(
    dataset: str | Dataset,
    algorithm: str,
    test_domains: Sequence[str | int] | str | int,
    options: TrainingOptions = DEFAULTS,
    *,
    train_domains: Sequence[str | int] | str | int | None = None,
    draw: int = 0,
    trial: int = 0,
    setting: str = "multi",
    variant: str = "",
    **changes: Unpack[TrainingKeywords],
) -> Run:
    """A checked Run: domains by name or number, training on all others, defaults from dataset and algorithm.

    Without a test domain it trains on every domain: to deliver a model, not to evaluate one. `changes` are fields of
    the options: `plan_run("PACS", "DAT", "photo", steps=1001, hparams={"eps": 2.0})`.
    """
    options = options.changed(**changes)
    data = for_network(dataset if isinstance(dataset, Dataset) else find_dataset(dataset), options.network)
    method = ALGORITHMS[algorithm]
    test = _domains(data, test_domains)
    rest = [domain for domain in data.domains if domain not in (*test, *data.validation, *data.unseen)]
    train = _domains(data, rest if train_domains is None else train_domains)
    validation = tuple(domain for domain in data.validation if domain not in (*test, *train))
    if both := set(train) & set(test):
        raise UserError(f"{data.title}: domain {sorted(both)[0]!r} cannot be both trained on and unseen")
    if len(train) < method.needs_domains:
        raise Unsuited(
            f"{algorithm} needs at least {method.needs_domains} training domains; "
            f"{len(train)} left of {data.title} when {', '.join(test) or 'none'} is unseen"
        )
    if len(set(train)) < len(train) or len(set(test)) < len(test):
        raise UserError(f"{data.title}: a domain is named twice in {', '.join((*train, *test))}")
    legal = search_space(algorithm, data.scale)
    values = spaces.override(legal, spaces.draw(legal, draw, trial), options.hparams, algorithm)
    network = options.network or data.network
    NETWORKS[network]
    if pretrained_weights(network) and data.shape[0] != 3:
        channels = f"{data.name} has {data.shape[0]}" if len(data.shape) == 3 else f"{data.name} has no images"
        raise UserError(
            f"{network} starts from weights for 3 channels, but {channels}: choose another network", argument="network"
        )
    if options.precision not in PRECISIONS:
        raise unknown("precision", options.precision, PRECISIONS)
    for name in options.track:
        if name not in TRACKABLE:
            raise unknown("thing to track", name, TRACKABLE)
    steps = data.steps if options.steps is None else options.steps
    evaluate_every = data.evaluate_every if options.evaluate_every is None else options.evaluate_every
    for name, number in (("steps", steps), ("evaluate_every", evaluate_every)):
        limits.check(name, number, 1, limits.STEPS)
    for name, number in (("draw", draw), ("trial", trial)):
        limits.check(name, number, 0, limits.STEPS)
    limits.check("seed", options.seed, -limits.SEED, limits.SEED)
    limits.check("threads", options.threads, 1, limits.THREADS)
    held_out = data.held_out if options.held_out is None else options.held_out
    if not 0 <= held_out < 1:
        raise UserError(f"held_out={held_out}: must be at least 0 and less than 1", argument="held_out")
    average = options.average or method.weight_average
    check_average(average, held_out)
    check_recipe(options, held_out)
    check_balance(options, data.classes)
    _check_method(method, algorithm, options, data, network)
    method.check_domains(values, len(train))
    method.check_steps(values, steps)
    augmentation = data.augmentation if options.augmentation is None else options.augmentation
    return Run(
        data.name,
        algorithm,
        train,
        test,
        values,
        network,
        steps,
        evaluate_every,
        draw,
        trial,
        options.seed,
        options.precision,
        options.track,
        validation,
        held_out,
        setting,
        variant,
        planned(network, options.weights),
        check_augmentation(augmentation, data.shape, data.name, from_files=data.resizable),
        data.check_image_size(options.image_size),
        options.full_curves,
        threads=options.threads,
        average=average,
        shared_start=options.shared_start,
        start=options.start,
        freeze=options.freeze,
        lr_schedule=options.lr_schedule,
        early_stop=options.early_stop,
        clip_gradient=float(options.clip_gradient),
        train=options.train,
        layer_decay=float(options.layer_decay),
        balance=options.balance,
        class_weights=tuple((name, float(weight)) for name, weight in options.class_weights),
    )


@cache
def search_space(algorithm: str, scale: Scale) -> dict[str, Parameter]:
    """The algorithm's hyper-parameters at this scale."""
    return spaces.at_scale(ALGORITHMS[algorithm].space, scale)


def erm_to_the_end(runs: Iterable[Run]) -> Iterator[str]:
    """A sentence on every method that none of its runs reaches: they end before the step at which it begins."""
    found: dict[str, list[tuple[int, int]]] = {}
    for run in runs:
        begins_at = ALGORITHMS[run.algorithm].begins_at
        begins = int(run.hparams[begins_at] or 0) if begins_at else 0
        found.setdefault(run.algorithm, []).append((begins, run.steps))
    for name, pairs in found.items():
        begins, steps = min(pairs, key=lambda pair: pair[0] - pair[1])
        if begins >= steps:
            yield (
                f"{name} is ERM before step {begins:,}, and there are {steps:,} steps: "
                f"set more steps, or a smaller {ALGORITHMS[name].begins_at}"
            )


def features_train(options: TrainingOptions, network: str) -> bool:
    """Whether a training with these options changes features: they are not frozen, and the network has some."""
    return not options.freeze and getattr(NETWORKS[network], "learns", True)


def _check_method(method: "type[Algorithm]", name: str, options: TrainingOptions, data: Dataset, network: str) -> None:
    """Raises Unsuited if the method cannot work with the recipe of these options, the data or the network."""
    if method.changes_input_layer and len(data.shape) != 3:
        raise Unsuited(f"{name} needs images, to which it adds a channel, but {data.title} has vectors: leave it out")
    features = NETWORKS[network]
    if method.changes_input_layer and (is_hub(network) or getattr(features, "reads_vectors", False)):
        which = "backbones of a hub do" if is_hub(network) else f"{network} does"
        raise Unsuited(
            f"{name} adds an input channel to the network, which {which} not take: choose another method, or a resnet",
            argument="network",
        )
    if method.moves_features and options.freeze:
        raise Unsuited(
            f"all that {name} adds happens in the features, which are frozen: choose ERM, or train the features",
            argument="freeze",
        )
    if method.moves_features and not features_train(options, network):
        raise Unsuited(
            f"all that {name} adds happens in the features, and {network} has none to train: choose ERM, or mlp",
            argument="network",
        )
    if options.start and method.replaces_layers:
        raise Unsuited(
            f"{name} replaces layers of the network, so that a classifier fitted before does not fit: "
            "choose another method, or no start",
            argument="start",
        )


def _domains(data: Dataset, keys: Sequence[str | int] | str | int) -> tuple[str, ...]:
    """Domains by name or number; one alone need not be in a list."""
    return tuple(data.domain(str(key)) for key in ([keys] if isinstance(keys, (str, int)) else keys))
