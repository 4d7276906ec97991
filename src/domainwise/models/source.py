"""The data a model is trained on: a dataset by name, a folder of images, or arrays in memory."""

from dataclasses import dataclass, replace
from pathlib import Path

from domainwise.data.catalogue import Dataset
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.data.sources.saved import fingerprint


@dataclass(frozen=True)
class Source:
    """A dataset's description, and its data."""

    dataset: Dataset
    environments: Environments


def source(
    data: Environments | Path | str,
    data_root: Path | None = None,
    image_size: int | None = None,
    network: str | None = None,
    *,
    skip_bad: bool = False,
) -> Source:
    """A dataset by name, a folder of images by path, or data in memory.

    Data in memory gets its fingerprint into its name: a training on other data of the same name is another training. Of
    a folder, images that cannot be decoded are left out if `skip_bad`.
    """
    if isinstance(data, Environments):
        named = replace(data, name=f"{data.name}-{fingerprint(data)[:8]}")
        return Source(Dataset.from_environments(named), named)
    dataset = find_dataset(str(data), skip_bad=skip_bad).for_network(network)
    return Source(dataset, dataset.load(data_root, image_size))
