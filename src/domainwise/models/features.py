"""The features of a dataset by a pre-trained network, as vectors."""

from dataclasses import replace
from pathlib import Path

from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.engine.devices import check_precision, pick_device
from domainwise.engine.frozen_features import features_of
from domainwise.nets.weights import for_network, planned
from domainwise.protocol.network_names import network_title


def extract_features(
    dataset: str | Path | Environments | Dataset,
    network: str,
    *,
    weights: str | Path = "",
    image_size: int | None = None,
    precision: str = "fp32",
    device: str = "auto",
    data_root: Path | None = None,
) -> Environments:
    """Environments of vectors: what `network`, with its pre-trained weights, makes of every image.

    Every image is computed once, whatever uses it: see `domainwise.data.feature_cache`. The result can be trained on
    like any data, with the networks "linear" or "mlp", or saved by `domainwise.data.feature_files.write_features`.
    """
    chosen = pick_device(device)
    check_precision(precision, chosen)
    reference = planned(network, weights, data_root)
    if not reference:
        raise UserError(
            f"{network} has no pre-trained weights, so that its features are random: choose another network, or give "
            "its weights",
            argument="weights",
        )
    if isinstance(dataset, Environments):
        data = dataset
    else:
        named = dataset if isinstance(dataset, Dataset) else find_dataset(str(dataset))
        data = for_network(named, network).load(data_root, image_size)
    if data.vectors:
        raise UserError(f"{data.name} has no images, but vectors: they are features already")
    vectors = features_of(data, network, reference, precision, chosen, data_root)
    return replace(vectors, name=f"{data.name}-{network_title(network)}")
