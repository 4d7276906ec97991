"""Features computed beforehand: a network whose features are frozen needs every image once, not once per step.

A run trains on them if its features are frozen from pre-trained weights, its images are not augmented, and its method
uses images by their features only. The features of a linear probe (`engine.probe_start`) come from the same cache.
"""

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Problem
from domainwise.core.provenance import device_name
from domainwise.core.threads import cores, cpu_threads
from domainwise.data.environments import Environments
from domainwise.data.feature_cache import cached_features
from domainwise.data.fingerprints import fingerprints
from domainwise.engine.assemble import as_read_by, make_network
from domainwise.nets.loading import start_from
from domainwise.nets.network import Network
from domainwise.protocol.network_names import network_title
from domainwise.protocol.runs import Run, WeightsReference

CHUNK = 64
"""Images per forward pass; the last chunk is filled up, so that a feature does not depend on the other images."""


def trains_on_features(run: Run) -> bool:
    """Whether features that are computed beforehand can replace the images of a run."""
    frozen = run.freeze == "features" and run.augmentation == "none" and bool(run.weights)
    return frozen and not run.track and not ALGORITHMS[run.algorithm].reads_inputs


def frozen_features(
    run: Run, data: Environments, device: torch.device, data_root: Path | None = None
) -> Environments | None:
    """The data with the features that the run's network starts with in place of images; None if the run uses none."""
    if data.vectors or not (trains_on_features(run) or (run.start == "probe" and run.weights)):
        return None
    return features_of(data, run.network, run.weights, run.precision, device, data_root)


def features_of(
    data: Environments,
    network: str,
    weights: str,
    precision: str = "fp32",
    device: torch.device | None = None,
    data_root: Path | None = None,
) -> Environments:
    """The data with features in place of images: those of a network that starts from `weights`, "file#fingerprint".

    They are read from the feature cache, which computes those that are missing.
    """
    device, data = device or torch.device("cpu"), as_read_by(network, data)
    name, fingerprint = network_title(network), WeightsReference.parse(weights).fingerprint
    normalisation = (data.mean.flatten().tolist(), data.std.flatten().tolist())
    made_by = f"{precision} on {device_name(device)} by torch {torch.__version__}"
    computed_by = f"{made_by}, {tuple(data.shape)} normalised by {normalisation}"
    recent = (id(data.images), name, fingerprint, computed_by)
    if recent not in _recent:
        compute = _FeatureNetwork(data, network, weights, precision, device, data_root)
        features = cached_features(
            fingerprints(data.images),
            compute,
            network=name,
            weights=fingerprint,
            size=data.shape[-1],
            computed_by=computed_by,
        )
        _recent[recent] = (data.images, features)
        while len(_recent) > 2:
            _recent.popitem(last=False)
    features = _recent[recent][1]
    mean = features.new_zeros(features.shape[1])
    plain = replace(data, images=features, originals=None, mean=mean, streamed=False)
    return replace(plain, std=torch.ones_like(plain.mean))


_recent: OrderedDict[tuple[int, str, str, str], tuple[Tensor, Tensor]] = OrderedDict()
"""(images, features) of the last data: one process trains many runs on the same."""


class _FeatureNetwork:
    """Row numbers -> features; built when the first image is missing."""

    def __init__(
        self,
        data: Environments,
        network: str,
        weights: str,
        precision: str,
        device: torch.device,
        data_root: Path | None,
    ) -> None:
        self.data, self.device = data, device
        self.description = (network, weights, precision, data_root)
        self.built: Network | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        network = self._network()
        if self.device.type != "cpu":
            return torch.cat([self._features(network, part) for part in rows.split(CHUNK)])
        with ThreadPoolExecutor(cores()) as pool:  # one thread per chunk: the same bits on any number of cores
            return torch.cat(list(pool.map(lambda part: self._on_one_thread(network, part), rows.split(CHUNK))))

    def _on_one_thread(self, network: Network, rows: Tensor) -> Tensor:
        with cpu_threads(1):
            return self._features(network, rows)

    @torch.no_grad()
    def _features(self, network: Network, rows: Tensor) -> Tensor:
        preprocessing = self.data.preprocessing.to(self.device)
        images = self.data.images[rows.to(self.data.images.device)].to(self.device)
        filled = F.pad(images, (0, 0) * (images.ndim - 1) + (0, CHUNK - len(images)))
        return network.represent(preprocessing.normalise(filled))[: len(rows)].float()

    def _network(self) -> Network:
        if self.built is None:
            network, weights, precision, data_root = self.description
            seen = self.data.preprocessing
            problem = Problem((), len(seen.classes), seen.shape, seen.low, seen.high)
            with torch.random.fork_rng(devices=[]):
                self.built = make_network(network, problem, {"dropout": 0.0}, precision)
            start_from(self.built.features, weights, data_root)
            self.built.to(self.device).eval()
        return self.built
