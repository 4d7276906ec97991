"""A run's network and algorithm from their names, for training and for prediction."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.adversarial import log_mean_probability
from domainwise.algorithms.base import Algorithm, Problem
from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.data.preprocessing import Preprocessing
from domainwise.nets.backbones import Backbone, from_configuration
from domainwise.nets.hub import image_facts
from domainwise.nets.loading import start_from
from domainwise.nets.network import Network, build
from domainwise.nets.parts import rate_factors, train_only
from domainwise.protocol.spaces import HParams


def as_read_by(network: str, data: Environments) -> Environments:
    """The data with the normalisation that the network's own files name, if they name one."""
    facts = image_facts(network)
    return data.normalised_by(facts.mean, facts.std)


def make_network(
    name: str,
    problem: Problem,
    hparams: HParams,
    precision: str,
    architecture: Mapping[str, Any] = MappingProxyType({}),
) -> Network:
    """The network with fresh weights; one that cannot read the problem's vectors is a UserError.

    With an `architecture` (see `nets.hub.configuration`) a hub's backbone is built without looking for its files.
    """
    dropout = float(hparams["dropout"] or 0)
    if architecture:
        features = from_configuration(architecture, problem.shape, name)
        net = Network(features, problem.classes, dropout=dropout, precision=precision)
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return net
    if len(problem.shape) == 3:
        net = build(name, problem.shape, problem.classes, dropout=dropout, precision=precision)
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return net
    try:
        net = build(name, problem.shape, problem.classes, dropout=dropout, precision=precision)
        with torch.no_grad():
            net.eval()(torch.zeros(1, *problem.shape))
    except (RuntimeError, ValueError, IndexError, TypeError):
        raise UserError(f"network {name!r} cannot read vectors of {problem.shape[0]} numbers: use mlp") from None
    net.train()
    return net


def make_algorithm(
    algorithm: str,
    network: str,
    hparams: HParams,
    preprocessing: Preprocessing,
    sizes: Sequence[int],
    precision: str = "fp32",
    *,
    noise: torch.Generator | None = None,
    weights: str = "",
    data_root: Path | None = None,
    freeze: str = "",
    train: str = "",
    layer_decay: float = 1.0,
    architecture: Mapping[str, Any] = MappingProxyType({}),
    start: Callable[[Network], None] | None = None,
) -> Algorithm:
    """An algorithm with a new network, which starts from `weights` (a reference) if there are any.

    `start` may change the network before the algorithm has it; with `freeze` "features" only its classifier learns,
    with `train` that part of the features, too (`nets.parts`).
    `sizes` are the numbers of training samples per domain. Steps draw random numbers from `noise`. Without it the
    algorithm only predicts: it has no optimisers, is in eval mode, and leaves the caller's random state unchanged.
    """
    low, high = preprocessing.low, preprocessing.high
    problem = Problem(tuple(sizes), len(preprocessing.classes), preprocessing.shape, low, high)
    with nullcontext() if noise else torch.random.fork_rng(devices=[]):
        net = make_network(network, problem, hparams, precision, architecture)
        twice, features = ALGORITHMS[algorithm].differentiates_twice, net.features
        if twice and isinstance(features, Backbone) and not features.use_plain_attention():
            raise UserError(
                f"{algorithm} differentiates twice, which the attention of {network} does not allow: "
                "choose another network",
                argument="network",
            )
        if weights:
            start_from(net.features, weights, data_root)
        if start is not None:
            start(net)
        if freeze:
            net.freeze_features()
        if train:
            train_only(net.features, train, network)
        if layer_decay < 1 and noise is not None:
            net.rate_factors = rate_factors(net.features, layer_decay, network)
        stream = noise or torch.Generator("cpu" if low.is_meta else low.device)
        made = ALGORITHMS[algorithm](net, problem, hparams, stream, trainable=noise is not None)
    return made if noise else made.eval()


def linear_classifier(algorithm: Algorithm, name: str) -> nn.Linear:
    """The one linear layer that predicts from features; an algorithm without it is a UserError of the method `name`."""
    network = getattr(algorithm, "network", None)
    classifier = network.classifier if isinstance(network, Network) else None
    if type(algorithm).predict is not Algorithm.predict or not isinstance(classifier, nn.Linear):
        kind = "an ensemble" if isinstance(algorithm, EnsembleAlgorithm) else type(algorithm).__name__
        raise UserError(f"{name} needs a model with one linear classifier, which {kind} does not have")
    return classifier


class EnsembleAlgorithm(Algorithm):
    """Trained algorithms as one that only predicts: p(y|x) = mean_m softmax(f_m(x))_y.

    Paper: ensembles of averages, Arpit et al. 2022, https://arxiv.org/abs/2110.10832.
    """

    def __init__(self, members: Sequence[Algorithm]) -> None:
        nn.Module.__init__(self)
        self.members = nn.ModuleList(members)
        self.problem, self.noise, self.hparams = members[0].problem, members[0].noise, members[0].hparams
        self.batch_dependent = members[0].batch_dependent  # type: ignore[misc]
        self.optimizers = {}
        self.eval()

    def predict(self, x: Tensor, domain: int | None = None) -> Tensor:
        """The logarithms of the mean probabilities, [N, classes]."""
        return log_mean_probability([member.predict(x, domain) for member in self.algorithms])

    def embed(self, x: Tensor) -> Tensor:
        """The features of all members beside each other."""
        return torch.cat([member.embed(x) for member in self.algorithms], 1)

    @property
    def algorithms(self) -> list[Algorithm]:
        """The members."""
        return [member for member in self.members if isinstance(member, Algorithm)]
